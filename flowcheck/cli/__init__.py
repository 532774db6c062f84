"""The command line: one file per group of commands."""

from flowcheck.cli.main import app, main

__all__ = ["app", "main"]
