"""The HTTP server of checkpoints: steps in memory and on disk."""
