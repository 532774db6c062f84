"""What a model will put on the wire and need of memory, before it does."""
