"""One collective laid over the sends of a ring, and where its bytes belong."""
