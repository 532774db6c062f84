"""Finds out from which step each buffer and frozen tensor of a trainer's checkpoint is.

Evidence are the job's packets and other files of the trainer. Where no model is stated, a tensor
that is equal in files of two steps is assumed constant. Where both the file and the packets have a
tensor, the newer one is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flowcheck.findings.catalog import restored_state as gaps
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.step_numbers import Step
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

ALWAYS_CHANGING_BUFFERS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
"""Names of buffers that every forward pass in training changes (torch/nn/modules/batchnorm.py,
_NormBase)."""
SHOWN = 3
"""Most names that a sentence lists. A choice of layout."""


@dataclass(frozen=True, slots=True)
class ObservedFile:
    """A file of the trainer that FlowCheck has seen."""

    step: Step
    non_parameter_digests: Mapping[str, str]
    """{name: digest} of the tensors that are not parameters."""


@dataclass(slots=True)
class BufferVerdicts:
    """Names of a file's buffers, by what other files show about them."""

    same: list[str] = field(default_factory=list)
    """Buffers that are assumed constant."""
    stale: list[str] = field(default_factory=list)
    """Buffers that differ in a file of another step, or that every forward pass changes."""
    unknown: list[str] = field(default_factory=list)
    """Buffers without evidence."""
    assumed: list[Finding] = field(default_factory=list)
    """Assumptions about the buffers in `same` and `unknown`."""


@structure_errors_as_state_errors("the file")
def buffer_digests(template: CheckpointTemplate, names: Iterable[str]) -> dict[str, str]:
    """{name without "module.": digest of the tensor's bytes in index order}."""
    own = {name.removeprefix("module."): template.model[name] for name in names}
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for t in own.values()]
    return {n: digest.hex() for n, digest in zip(own, tensor_digests(raw), strict=True)}


def judge_buffers(
    template: CheckpointTemplate, names: Sequence[str], observed: Sequence[ObservedFile]
) -> BufferVerdicts:
    """Judges buffers by other files of the trainer. names: tensors of the template's model that are
    not known from the job's packets."""
    own = buffer_digests(template, names)
    found, same = BufferVerdicts(), defaultdict[tuple[int, ...], list[str]](list)
    for name in names:
        plain = name.removeprefix("module.")
        told = {
            one.step: one.non_parameter_digests[plain]
            for one in observed
            if plain in one.non_parameter_digests
        }
        told.pop(template.step, None)
        if any(digest != own[plain] for digest in told.values()):
            found.stale.append(name)
        elif told:
            same[tuple(sorted({template.step, *told}))].append(name)
        else:
            changes = plain.rpartition(".")[2] in ALWAYS_CHANGING_BUFFERS
            (found.stale if changes else found.unknown).append(name)
    found.same = [name for stay in same.values() for name in stay]
    for steps, stay in same.items():
        stays = gaps.TENSORS_STAY(names=first_names(stay), tensors=len(stay), steps=steps)
        found.assumed.append(stays)
    if found.unknown:
        unknown = gaps.TENSORS_UNKNOWN(
            names=first_names(found.unknown), tensors=len(found.unknown), step=template.step
        )
        found.assumed.append(unknown)
    return found


def first_names(names: Sequence[str]) -> Finding:
    """A finding with the first SHOWN names and the number of further ones."""
    shown, more = names[:SHOWN], len(names) - SHOWN
    return gaps.NAMES(shown) if more <= 0 else gaps.NAMES_AND_MORE(names=shown, more=more)


def newest_tensor(
    auxiliary: FrozenAndBuffers, name: str, held: torch.Tensor, *, of: int, now: int
) -> tuple[torch.Tensor, int]:
    """The newest known version of a tensor and its step.

    held: the tensor in a file of step `of`, under `name`. auxiliary: what the job's packets
    showed up to step `now`. A frozen parameter or constant buffer counts as from step `now`.
    """
    plain = name.removeprefix("module.")
    own = dict(auxiliary.keys).get(plain, plain)
    known = auxiliary.tensors.get(own)
    if known is None or (known.shape, known.dtype) != (held.shape, held.dtype):
        return held, of
    if own in auxiliary.frozen or own in auxiliary.constant_buffers:
        return known, now
    told = auxiliary.step_of_buffer(own)
    return (known, told) if told >= of else (held, of)


def buffers_of_other_steps(older: Mapping[str, int]) -> tuple[Finding, ...]:
    """A finding for each step from which buffers are. older: {buffer: its step}."""
    steps = Counter(older.values())
    return tuple(
        gaps.BUFFERS_OF_STEP(buffers=count, step=step) for step, count in sorted(steps.items())
    )


@dataclass(frozen=True, slots=True)
class FilledBuffers:
    """The buffers of a template after `fill_buffers`."""

    now: int
    """Number of buffers that are from the snapshot's step, without frozen parameters."""
    older: Mapping[str, int]
    """{buffer: its step}, for buffers from another step."""
    unknown_step: tuple[str, ...]
    """Buffers in `older` that stay as the template has them, since nothing newer is known."""
    lacks: tuple[Finding, ...]
    """Findings about the buffers in `older` that are known to change."""
    assumed: tuple[Finding, ...] = ()
    """Assumptions about the other buffers."""


def fill_buffers(
    template: CheckpointTemplate, snapshot: Snapshot, observed: Sequence[ObservedFile] = ()
) -> FilledBuffers:
    """Puts the newest known version of each buffer into the template. observed: other files of the
    trainer, as evidence."""
    auxiliary, step = snapshot.frozen_and_buffers, snapshot.step
    frozen = {key for key, name in auxiliary.keys if name in auxiliary.frozen}
    of, untold = {}, []
    for name in template.non_parameters:
        held = template.model[name]
        value, at = newest_tensor(auxiliary, name, held, of=template.step, now=step)
        if not torch.equal(held, value):
            held.detach().copy_(value)
        if name.removeprefix("module.") in frozen:
            continue
        of[name] = at
        if value is held and at != step:
            untold.append(name)
    stale: list[str] = untold
    assumed: list[Finding] = []
    if not auxiliary.keys:
        judged = judge_buffers(template, untold, observed)
        stale, assumed = judged.stale, judged.assumed
        of |= dict.fromkeys(judged.same, step)
        untold = [name for name in untold if name not in judged.same]
    older = {name: at for name, at in of.items() if at != step}
    lacks = buffers_of_other_steps({name: at for name, at in older.items() if name not in untold})
    if stale:
        lacks += (
            gaps.TEMPLATE_BUFFERS(
                buffers=len(stale),
                template_step=template.step,
                step=step,
                names=first_names(stale),
            ),
        )
    return FilledBuffers(len(of) - len(older), older, tuple(untold), lacks, tuple(assumed))
