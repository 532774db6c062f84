"""Jobs whose mirrors lose drawn frames, through extract and update stage: every element that is not
tainted is torch's own, and the trainer's values of a later step make the others so."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cut import gradient_of
from support.lives import Both
from support.netib import Options, Truth, generate
from support.staged import Chain
from test_losses_drawn import drawn_job, lose

from flowcheck.replica.element_patch import ElementPatch, patch_of_sections
from flowcheck.replica.element_ranges import Ranges, union
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.job_state.given_checkpoint_request import request_answer, submit_patch
from flowcheck.stages.job_state.heal_log import read_heal_records

RATE = 1e-3


class Trainer:
    """What torch makes of the truth: the flat sections of each step."""

    def __init__(self, truth: Truth, shapes: tuple[tuple[int, ...], ...], steps: int) -> None:
        self._cuts = np.cumsum([prod(shape) for shape in shapes])[:-1]
        self._shapes = shapes
        own = [torch.nn.Parameter(value) for value in self._split(truth.weights)]
        optimizer = torch.optim.AdamW(own, lr=RATE)
        self.states: list[dict[str, np.ndarray]] = [{}]
        for step in range(steps):
            for parameter, gradient in zip(own, self._split(gradient_of(truth, step)), strict=True):
                parameter.grad = gradient
            optimizer.step()
            kept: dict[str, list[np.ndarray]] = {"parameters": []}
            for parameter in own:
                kept["parameters"].append(parameter.detach().numpy().reshape(-1).copy())
                for name in ("exp_avg", "exp_avg_sq"):
                    value = optimizer.state[parameter][name].numpy().reshape(-1).copy()
                    kept.setdefault(name, []).append(value)
            self.states.append({name: np.concatenate(parts) for name, parts in kept.items()})

    def _split(self, raw: bytes) -> list[torch.Tensor]:
        flat = np.frombuffer(raw, "<f4")
        parts = zip(np.split(flat, self._cuts), self._shapes, strict=True)
        return [torch.from_numpy(part.copy()).reshape(shape) for part, shape in parts]


def tainted_of(replica: Replica) -> Ranges:
    starts = {p.name: p.start for p in replica.layout.parameters}
    found = [
        [starts[name] + one.start, starts[name] + one.stop]
        for name, own in replica.tainted.items()
        for one in own
    ]
    return union([np.array(found, np.int64).reshape(-1, 2)])


def check(replica: Replica, trainer: Trainer) -> None:
    """All but what is tainted is torch's, bit for bit; a step without taint says so."""
    apart = np.ones(replica.layout.elements, np.bool_)
    for start, stop in tainted_of(replica).tolist():
        apart[start:stop] = False
    assert replica.commit.tainted == (not apart.all())
    own = replica.sections()
    for name, right in trainer.states[replica.step].items():
        alike = own[name].view(np.uint32) == right.view(np.uint32)
        assert alike[apart].all(), name


def heal(both: Both, step: int, trainer: Trainer, dice: random.Random) -> bool:
    """Gives the trainer's values of a step, with some exact elements as evidence."""
    update: Any = both.update._opened()
    replica = update.replica
    values = union([tainted_of(replica)])
    if step in replica.versions:
        first = dice.randrange(replica.layout.elements)
        values = union([values, np.array([[first, first + 1]])])
    patch: ElementPatch = patch_of_sections(replica.description, trainer.states[step], values)
    request = submit_patch(both.chain.run, step, patch, "the trainer")  # type: ignore[arg-type]
    both.drive(until=lambda: request_answer(both.chain.run, request) is not None)
    answer = request_answer(both.chain.run, request)
    assert answer is not None
    return answer.refused is None


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 1001))]
)
def test_what_is_not_tainted_is_exact_and_the_rest_heals(
    seed: int, tmp_path: Path, shm: Path
) -> None:
    dice = random.Random(seed)
    options: Options = drawn_job(dice, seed)
    made = generate(options, tmp_path)
    for file in made.files:
        lose(file, dice)
    trainer = Trainer(made.truth, options.shapes, options.steps)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    both = Both(chain, source=[{"file": str(n)} for n in range(len(made.files))])
    try:
        both.drive()
        update = both.update._opened()
        if update is None or not update.replica.step:
            return  # no job was learned of what is left
        replica = update.replica
        check(replica, trainer)
        lost = tainted_of(replica)
        if not len(lost):
            return
        since = min(one.since for own in replica.tainted.values() for one in own)
        healed = heal(both, dice.randint(since, replica.step), trainer, dice)
        check(replica, trainer)
        told = read_heal_records(chain.run)[-1]
        assert (told.refused is None) == healed == (told.elements > 0)
        if len(tainted_of(replica)):
            assert heal(both, replica.step, trainer, dice)
        check(replica, trainer)
        assert not len(tainted_of(replica))
    finally:
        both.close()
