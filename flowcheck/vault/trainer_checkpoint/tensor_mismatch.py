"""What differs between a tensor of a trainer's checkpoint and the replica's."""

from __future__ import annotations

import torch

from flowcheck.findings.catalog.trainer_checkpoints import OTHER_TYPE_OR_SHAPE
from flowcheck.findings.finding import Finding


def type_or_shape_differs(name: str, theirs: torch.Tensor, own: torch.Tensor) -> Finding:
    """theirs: of the trainer's checkpoint, own: of the replica."""
    return OTHER_TYPE_OR_SHAPE(
        tensor=name,
        dtype=str(theirs.dtype),
        shape=theirs.shape,
        own_dtype=str(own.dtype),
        own_shape=own.shape,
    )
