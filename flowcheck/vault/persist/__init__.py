"""Checkpoints written while the replica goes on: when, where to, which of them stay."""
