"""Buffers and frozen tensors of a trainer's checkpoint: of which step each is, judged by the
stream and by other files.

that is the same in files of two steps is taken not to change.

whichever is newer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.digest import tensor_digests
from flowcheck.step_numbers import Step
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

CHANGING = frozenset(("running_mean", "running_var", "num_batches_tracked"))
"""torch/nn/modules/batchnorm.py, _NormBase: what every forward of a module in training changes."""
SHOWN = 3
STAYS = (
    "that steps never change {}: the same in the trainer's files of steps {} (no model is stated)"
)
UNKNOWN = (
    "that steps never change {}: of the template, of step {}, and nothing told more (no model is "
    "stated; flowcheck audit of a file of another step tells, or restore --also FILE)"
)


@dataclass(frozen=True, slots=True)
class ObservedFile:
    """A file of the trainer's."""

    step: Step
    others: Mapping[str, str]
    """Digests, by name, of tensors that are no parameters."""


@dataclass(slots=True)
class Judged:
    """Tensors that are a file's own, by what other files show of them."""

    same: list[str] = field(default_factory=list)
    """Taken to stay as they are."""
    stale: list[str] = field(default_factory=list)
    """Another in a file of another step, or such that every forward changes it."""
    unknown: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    """Sentences, of those that are taken to stay and of the unknown ones."""


@structure_errors_as_state_errors("the file")
def buffer_digests(template: CheckpointTemplate, names: Iterable[str]) -> dict[str, str]:
    """{name without "module.": digest of its bytes in index order}."""
    own = {name.removeprefix("module."): template.model[name] for name in names}
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for t in own.values()]
    return {n: digest.hex() for n, digest in zip(own, tensor_digests(raw), strict=True)}


def judge_buffers(
    template: CheckpointTemplate, names: Sequence[str], seen: Sequence[ObservedFile]
) -> Judged:
    """names: of the template's model, of which nothing but files tells."""
    own = buffer_digests(template, names)
    found, same = Judged(), defaultdict[tuple[int, ...], list[str]](list)
    for name in names:
        plain = name.removeprefix("module.")
        told = {one.step: one.others[plain] for one in seen if plain in one.others}
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
        found.assumed.append(STAYS.format(listed(stay), " and ".join(map(str, steps))))
    if found.unknown:
        found.assumed.append(UNKNOWN.format(listed(found.unknown), template.step))
    return found


def listed(names: Sequence[str]) -> str:
    """How many, and the first of them."""
    kind = "tensors that take none" if len(names) > 1 else "tensor that takes none"
    return f"{len(names)} {kind} ({first_of(names)})"


def first_of(names: Sequence[str]) -> str:
    """A few of them, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def newest(
    beside: FrozenAndBuffers, name: str, held: torch.Tensor, *, of: int, now: int
) -> tuple[torch.Tensor, int]:
    """(the tensor, the step it is of): `held`, of step `of`, which a file has under this name, or
    what the stream told of it by step `now`. What no step changes is of `now`."""
    plain = name.removeprefix("module.")
    own = dict(beside.keys).get(plain, plain)
    known = beside.tensors.get(own)
    if known is None or (known.shape, known.dtype) != (held.shape, held.dtype):
        return held, of
    if own in beside.frozen or own in beside.still:
        return known, now
    told = beside.step_of(own)
    return (known, told) if told >= of else (held, of)


def of_steps(older: Mapping[str, int]) -> tuple[str, ...]:
    """Of buffers that are of other steps, one phrase for each such step."""
    steps = Counter(older.values())
    return tuple(f"{count} buffers are of step {step}" for step, count in sorted(steps.items()))


@dataclass(frozen=True, slots=True)
class Buffers:
    """Of a template's model, after they were filled."""

    now: int
    """How many are of the snapshot's step; frozen parameters are none of them."""
    older: Mapping[str, int]
    """{buffer: the step it is of}, where that is another one."""
    untold: tuple[str, ...]
    """Of these the template's own, of which the stream told nothing newer."""
    lacks: tuple[str, ...]
    """The same in words, one phrase each; of those alone that are known to be of another step, or
    that a stated model changes."""
    assumed: tuple[str, ...] = ()
    """Sentences of the others."""


def fill_buffers(
    template: CheckpointTemplate, snapshot: Snapshot, seen: Sequence[ObservedFile] = ()
) -> Buffers:
    """Makes each as new as it is known; frozen parameters are the same at every step. seen: other
    files of the trainer's."""
    beside, step = snapshot.beside, snapshot.step
    frozen = {key for key, name in beside.keys if name in beside.frozen}
    of, untold = {}, []
    for name in template.others:
        held = template.model[name]
        value, at = newest(beside, name, held, of=template.step, now=step)
        if not torch.equal(held, value):
            held.detach().copy_(value)
        if name.removeprefix("module.") in frozen:
            continue
        of[name] = at
        if value is held and at != step:
            untold.append(name)
    stale: list[str] = untold
    assumed: list[str] = []
    if not beside.keys:
        judged = judge_buffers(template, untold, seen)
        stale, assumed = judged.stale, judged.assumed
        of |= dict.fromkeys(judged.same, step)
        untold = [name for name in untold if name not in judged.same]
    older = {name: at for name, at in of.items() if at != step}
    lacks = of_steps({name: at for name, at in older.items() if name not in untold})
    if stale:
        lacks += (
            f"{len(stale)} buffers are the template's own, of step {template.step} and NOT of step "
            f"{step}: {first_of(stale)}",
        )
    return Buffers(len(of) - len(older), older, tuple(untold), lacks, tuple(assumed))
