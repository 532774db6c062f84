"""Sharded training: which part of which parameter every rank gathers and sends."""
