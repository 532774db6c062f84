"""Compares the trainer's digests with the replica's, step by step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowcheck.step_numbers import Step

Digests = dict[str, str]
"""{name: sha256} of "parameters" and of each optimizer state, flat in registration order."""


@dataclass(frozen=True, slots=True)
class DigestComparison:
    """Result of comparing the steps of the trainer and of the replica."""

    equal: int
    """Number of steps whose digests are all equal."""
    states: int
    """Digests compared per step: parameters and each optimizer state."""
    different: tuple[tuple[Step, str], ...]
    """(step, name of the first state that differs)."""
    missing: tuple[Step, ...]
    """Steps for which the trainer or the replica has no digests."""

    @property
    def exact(self) -> bool:
        """Whether there are steps, all of them equal."""
        return self.equal > 0 and not self.different and not self.missing


def trainer_digests(path: Path) -> dict[Step, Digests]:
    """{step: digests} from a file of the training script; if a step was done twice, the second
    time counts."""
    found = {}
    for line in _lines(path):
        found[Step(int(line["step"]))] = {"parameters": line["parameters"], **line["states"]}
    return found


def replica_digests(path: Path) -> dict[Step, Digests]:
    """{step: digests} from the replica's steps.jsonl."""
    found = {}
    for line in _lines(path):
        if line.get("parameters_sha256"):
            states = line.get("states_sha256", {})
            found[Step(int(line["step"]))] = {"parameters": line["parameters_sha256"], **states}
    return found


def checkpoint_digests(path: Path) -> Digests:
    """Digests of a checkpoint of the training script, as the script makes them of itself. Its
    output weights are its token weights, and are in the file a second time."""
    import torch

    kept = torch.load(path, map_location="cpu", weights_only=True)
    parameters = [own for name, own in kept["model"].items() if name != "head.weight"]
    states = kept["optimizer"]["state"]
    kinds = sorted({kind for state in states.values() for kind in state})
    found = {kind: [states[number][kind] for number in sorted(states)] for kind in kinds}
    return {name: _sha256(own) for name, own in {"parameters": parameters, **found}.items()}


def _sha256(tensors: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().view(-1).numpy().tobytes())
    return whole.hexdigest()


def compare(
    trainer: Mapping[Step, Digests], replica: Mapping[Step, Digests], *, wanted: Iterable[Step] = ()
) -> DigestComparison:
    """Compares the digests of all steps. wanted: steps that both must have."""
    different: list[tuple[Step, str]] = []
    equal = states = 0
    for step, own in sorted(trainer.items()):
        other = replica.get(step)
        if other is None:
            continue
        wrong = sorted(k for k in own.keys() | other.keys() if own.get(k) != other.get(k))
        states = len(own)
        if wrong:
            different.append((step, wrong[0]))
        else:
            equal += 1
    steps = sorted({*trainer, *wanted})
    missing = tuple(step for step in steps if step not in replica or step not in trainer)
    return DigestComparison(equal, states, tuple(different), missing)


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
