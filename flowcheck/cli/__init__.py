"""The command line: one file of verbs for each thing an operator does."""

from flowcheck.cli.main import app, main

__all__ = ["app", "main"]
