"""Frames into rings, and marked there."""
