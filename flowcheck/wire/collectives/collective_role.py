"""What a collective is to its trainer, as a code for programs: those of `flowcheck plan` and of
`flowcheck analyze` are the same."""

from __future__ import annotations

from enum import StrEnum


class CollectiveRole(StrEnum):
    PARAMETER_COUNT = "parameter_count"
    PARAMETER_SHAPES = "parameter_shapes"
    INITIAL_WEIGHTS = "initial_weights"
    BUFFERS = "buffers"
    BUCKET_ORDER = "bucket_order"
    """Indices of parameters, bucket after bucket."""
    BUCKET_SIZES = "bucket_sizes"
    BUCKET = "bucket"
    """Gradients of one bucket."""
    USED_PARAMETERS = "used_parameters"
    """The map of find_unused_parameters or static_graph."""
    GRADIENT_PART = "gradient_part"
    """As large as parameters next to each other: a bucket, if a map of used parameters follows. No
    plan has it, nor those below."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Of sharded training, as the next ones are."""
    SCATTERED_GRADIENTS = "scattered_gradients"
    SUMMED_GRADIENTS = "summed_gradients"
    SUMMED_GRADIENT_PARTS = "summed_gradient_parts"
    OTHER = "other"
    """What was read of it has no code yet."""
