"""Saves checkpoints while the replica goes on: when, to which target, and which ones stay."""
