"""The run directory of a chain and its files. Every other room of `stages` may import this one."""
