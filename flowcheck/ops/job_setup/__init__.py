"""What a job file refers to, loaded and checked before a chain starts."""
