"""The trainer's own checkpoint given to a chain, or held against its replica."""
