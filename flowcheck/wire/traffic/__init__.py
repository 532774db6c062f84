"""What the mirror ports saw, as records."""
