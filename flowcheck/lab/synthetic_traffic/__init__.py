"""Frames of a training job that exists only on the wire."""
