"""A step's files: tensors written from memory, their sums, and the manifest that comes last."""
