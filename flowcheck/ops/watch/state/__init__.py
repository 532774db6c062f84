"""The state of a chain, read from its shared memory and run directory."""
