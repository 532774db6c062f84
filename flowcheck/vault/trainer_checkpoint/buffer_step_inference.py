"""Buffers and frozen tensors of a trainer's checkpoint: of which step each is, judged by the
stream and by other files.

Where no model is stated, a tensor that is the same in files of two steps is taken not to change.
Where both the file and the stream have a tensor, the newer one is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flowcheck.findings.catalog import resume_gaps as gaps
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.step_numbers import Step
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

CHANGING = frozenset(("running_mean", "running_var", "num_batches_tracked"))
"""torch/nn/modules/batchnorm.py, _NormBase: what every forward of a module in training changes."""
SHOWN = 3
"""Names that a sentence lists. A choice of layout."""


@dataclass(frozen=True, slots=True)
class ObservedFile:
    """A file of the trainer's."""

    step: Step
    non_parameter_digests: Mapping[str, str]
    """Digests, by name, of tensors that are no parameters."""


@dataclass(slots=True)
class BufferVerdicts:
    """Tensors that are a file's own, by what other files show of them."""

    same: list[str] = field(default_factory=list)
    """Taken to stay as they are."""
    stale: list[str] = field(default_factory=list)
    """Another in a file of another step, or such that every forward changes it."""
    unknown: list[str] = field(default_factory=list)
    assumed: list[Finding] = field(default_factory=list)
    """Of those that are taken to stay and of the unknown ones."""


@structure_errors_as_state_errors("the file")
def buffer_digests(template: CheckpointTemplate, names: Iterable[str]) -> dict[str, str]:
    """{name without "module.": digest of its bytes in index order}."""
    own = {name.removeprefix("module."): template.model[name] for name in names}
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for t in own.values()]
    return {n: digest.hex() for n, digest in zip(own, tensor_digests(raw), strict=True)}


def judge_buffers(
    template: CheckpointTemplate, names: Sequence[str], observed: Sequence[ObservedFile]
) -> BufferVerdicts:
    """names: of the template's model, of which nothing but files tells."""
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
            changes = plain.rpartition(".")[2] in CHANGING
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
    """A few of them, and how many more there are."""
    shown, more = names[:SHOWN], len(names) - SHOWN
    return gaps.NAMES(shown) if more <= 0 else gaps.NAMES_AND_MORE(names=shown, more=more)


def newest_tensor(
    auxiliary: FrozenAndBuffers, name: str, held: torch.Tensor, *, of: int, now: int
) -> tuple[torch.Tensor, int]:
    """(the tensor, the step it is of): `held`, of step `of`, which a file has under this name, or
    what the stream told of it by step `now`. What no step changes is of `now`."""
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
    """Of buffers that are of other steps, one for each of these steps."""
    steps = Counter(older.values())
    return tuple(
        gaps.BUFFERS_OF_STEP(buffers=count, step=step) for step, count in sorted(steps.items())
    )


@dataclass(frozen=True, slots=True)
class FilledBuffers:
    """Of a template's model, after they were filled."""

    now: int
    """How many are of the snapshot's step; frozen parameters are none of them."""
    older: Mapping[str, int]
    """{buffer: the step it is of}, where that is another one."""
    unknown_step: tuple[str, ...]
    """Of these the template's own, of which the stream told nothing newer."""
    lacks: tuple[Finding, ...]
    """The same as findings; of those alone that are known to be of another step, or that a stated
    model changes."""
    assumed: tuple[Finding, ...] = ()
    """Of the others."""


def fill_buffers(
    template: CheckpointTemplate, snapshot: Snapshot, observed: Sequence[ObservedFile] = ()
) -> FilledBuffers:
    """Makes each as new as it is known; frozen parameters are the same at every step. observed:
    other files of the trainer's."""
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
