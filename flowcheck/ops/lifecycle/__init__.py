"""Commands that run a chain in the foreground: start, supervision, shutdown, status."""
