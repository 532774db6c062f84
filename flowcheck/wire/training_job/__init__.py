"""A learned training job as records, and the placement tables made of it."""
