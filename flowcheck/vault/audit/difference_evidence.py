"""What a trainer's file holds where it differs from the replica: NaN, zeros, another step's
bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.file_audits import (
    ELEMENT_DIFFERS,
    HOLDS_NANS,
    HOLDS_OTHER_STEP,
    HOLDS_ZEROS,
    SETTING_OF_FILE_DIFFERS,
    TENSOR_DIFFERS,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.replica.state_file.digest_log import last_step_with
from flowcheck.vault.audit.bitwise_audit import Audit, ComparableTensor, comparable_tensors
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

LOOKED_AT = 4
"""Tensors that differ and are looked at, parameters and states of each kind apart. A choice: each
takes one pass over the digests of all steps."""


def first_difference_finding(found: Audit) -> Finding | None:
    """The first difference, by its parameter and, where the step is kept whole, its element; None:
    nothing differs."""
    if not found.differences:
        setting = found.first_difference
        return None if setting is None else SETTING_OF_FILE_DIFFERS(setting)
    first = found.differences[0]
    if first.index is None:
        return TENSOR_DIFFERS(tensor=first.name, step=found.step)
    return ELEMENT_DIFFERS(
        tensor=first.name, index=first.index, file=first.file_value, replica=first.replica_value
    )


@structure_errors_as_state_errors("the file")
def evidence_of(
    found: Audit,
    template: CheckpointTemplate,
    layout: Layout,
    optimizer: OptimizerConfig,
    trace: Path,
    tensors: int,
) -> tuple[Finding, ...]:
    """What the first tensors that differ hold instead, one of the parameters and one of each kind
    of optimizer state. trace: the log of the digests of all steps; tensors: how many a step has."""
    names = [difference.name for difference in found.differences]
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(name.rpartition("/")[2] if "/" in name else "", name)
    if found.rounded_to is not None:  # of rounded values no digests are kept
        own = dict(zip(template.names, template.parameters, strict=True))
        plain = [ComparableTensor(name, -1, _plain(own[name])) for name in names if name in own]
        return tuple(_evidence(plain[:LOOKED_AT], trace))
    held = {one.name: one for one in comparable_tensors(template, layout, optimizer, tensors)}
    chosen = [held[name] for name in list(kinds.values())[:LOOKED_AT] if name in held]
    return tuple(_evidence(chosen, trace))


def _evidence(tensors: Sequence[ComparableTensor], trace: Path) -> list[Finding]:
    said = []
    for tensor, digest in zip(tensors, tensor_digests([one.array for one in tensors]), strict=True):
        nans = _nans(tensor.array)
        step = last_step_with(trace, tensor.number, digest) if tensor.number >= 0 else None
        if nans:
            said.append(HOLDS_NANS(tensor=tensor.name, elements=nans))
        elif not tensor.array.view(np.uint8).any():
            said.append(HOLDS_ZEROS(tensor.name))
        elif step is not None:
            said.append(HOLDS_OTHER_STEP(tensor=tensor.name, step=step))
    return said


def _plain(tensor: torch.Tensor) -> np.ndarray:
    """Its values, flat, as numpy has them."""
    return tensor.detach().reshape(-1).to(torch.float32).numpy()


def _nans(array: np.ndarray) -> int:
    """Number of NaN of a floating-point array, bfloat16 as its bits among them."""
    if array.dtype.kind == "f":
        return int(np.isnan(array).sum())
    if array.dtype == np.uint16:  # numpy has no bfloat16
        bits = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return int(torch.isnan(bits).sum())
    return 0
