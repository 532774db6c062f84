"""Facts as codes, and the one catalogue of the sentences that people read."""
