"""FlowCheck: a checkpoint of every training step, taken from mirrored all-reduce traffic."""

__version__ = "0.1.0"
