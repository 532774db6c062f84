"""The table of torch's optimizers, with a row for each class. Does not import torch."""
