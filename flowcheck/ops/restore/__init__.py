"""Commands that write a step as a checkpoint, serve steps, and verify checkpoints."""
