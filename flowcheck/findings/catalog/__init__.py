"""The catalogue: one entry for each fact, by subject."""
