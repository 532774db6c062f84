"""A CPU replica of the model: parameter layout, optimizer steps, state file, checkpoints."""
