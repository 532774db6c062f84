"""The heal stage: asks the hook in the trainer for the values of tainted elements."""
