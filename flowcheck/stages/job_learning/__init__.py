"""A training job learned from staged messages."""
