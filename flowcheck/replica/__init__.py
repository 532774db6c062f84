"""A CPU replica of the model: layout, optimizers, exact state, files."""
