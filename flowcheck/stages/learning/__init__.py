"""A job read out of what is staged."""
