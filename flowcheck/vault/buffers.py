"""What of a model takes no steps, in a checkpoint of the trainer's: of the file, or of the stream,
whichever is newer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from flowcheck.replica.kept.beside import Beside
from flowcheck.replica.kept.snapshot import Snapshot
from flowcheck.vault.seen import Seen, first_of, judge
from flowcheck.vault.template import Template


def newest(
    beside: Beside, name: str, held: torch.Tensor, *, of: int, now: int
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


def fill_buffers(template: Template, snapshot: Snapshot, seen: Sequence[Seen] = ()) -> Buffers:
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
        judged = judge(template, untold, seen)
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
