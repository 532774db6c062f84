"""Steps made durable, and served."""
