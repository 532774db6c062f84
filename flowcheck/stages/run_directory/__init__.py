"""The run directory of a chain, and what its files record; below all other rooms of stages."""
