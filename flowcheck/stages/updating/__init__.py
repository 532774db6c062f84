"""Whole steps onto the replica."""
