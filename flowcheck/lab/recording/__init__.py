"""Captures of a running job, with the ground truth."""
