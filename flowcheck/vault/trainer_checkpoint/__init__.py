"""The trainer's own checkpoints: finds their parts, converts them to the replica's flat state, and
fills them with a newer step."""
