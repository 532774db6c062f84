"""What the trainer's own files showed of tensors that take no steps, where no model is stated: one
that is the same in files of two steps is taken not to change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from flowcheck.replica.kept.digest import tensor_digests
from flowcheck.step_numbers import Step
from flowcheck.vault.foreign import fitting
from flowcheck.vault.template import Template

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
class Seen:
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


@fitting("the file")
def others_in(template: Template, names: Iterable[str]) -> dict[str, str]:
    """{name without "module.": digest of its bytes in index order}."""
    own = {name.removeprefix("module."): template.model[name] for name in names}
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for t in own.values()]
    return {n: digest.hex() for n, digest in zip(own, tensor_digests(raw), strict=True)}


def judge(template: Template, names: Sequence[str], seen: Sequence[Seen]) -> Judged:
    """names: of the template's model, of which nothing but files tells."""
    own = others_in(template, names)
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
