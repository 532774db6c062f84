"""Iterations of sharded training, told from the order and the content of what is gathered."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.jobs.sharding.periods import Token, period_of

RING = Protocol.SIMPLE


@dataclass
class Trainer:
    """FSDP2 as torch makes it: the root's own unit first, kept gathered; layers gathered twice."""

    sizes: list[int]
    root: int | None = None
    backwards: int = 1
    kept: tuple[int, ...] = ()
    """Layers that stay gathered after the forward."""
    two_ranks: bool = False
    """What is gathered once an iteration is not told by its content."""
    tokens: list[Token] = field(default_factory=list)
    truth: list[tuple[int, dict[str, list[int]]]] = field(default_factory=list)
    """[iteration] (its first collective, {unit: places})"""

    def gather(self, unit: str, size: int, step: int, *, once: bool = False) -> None:
        begin, places = self.truth[-1]
        places.setdefault(unit, []).append(len(self.tokens) - begin)
        told = not (once and self.two_ranks)
        mark = f"{unit}.{step}".encode()
        self.tokens.append(
            Token(CollectiveKind.ALL_GATHER, size, RING, told, mark if told else b"")
        )

    def scatter(self, size: int) -> None:
        self.tokens.append(Token(CollectiveKind.REDUCE_SCATTER, size, RING, False, b""))

    def step(self, step: int) -> None:
        self.truth.append((len(self.tokens), {}))
        for backward in range(self.backwards):
            if self.root is not None and not backward:
                self.gather("root", self.root, step, once=True)
            for layer, size in enumerate(self.sizes):
                self.gather(f"{layer}", size, step, once=layer in self.kept)
            for layer in reversed(range(len(self.sizes))):
                if layer not in self.kept:
                    self.gather(f"{layer}", self.sizes[layer], step)
                if backward + 1 == self.backwards:
                    self.scatter(self.sizes[layer])
        if self.root is not None:
            self.scatter(self.root)

    def noise(self, kind: CollectiveKind, size: int) -> None:
        self.tokens.append(Token(kind, size, RING, False, b""))


def check(trainer: Trainer) -> None:
    period = period_of(trainer.tokens)
    assert period is not None
    begins = [begin for begin, _ in trainer.truth]
    assert period.start in begins
    places = sorted(trainer.truth[0][1].values())
    assert [list(unit) for unit in period.units] == places


@pytest.mark.parametrize("seed", range(40))
def test_iterations_and_units_are_those_of_the_trainer(seed: int) -> None:
    draw = random.Random(seed)
    layers = draw.randint(1, 8)
    alike = draw.random() < 0.4
    sizes = [800] * layers if alike else [800 + 16 * draw.randint(0, 5) for _ in range(layers)]
    two = draw.random() < 0.5
    trainer = Trainer(
        sizes,
        root=draw.choice([None, 48, 96]),
        backwards=draw.choice([1, 1, 2]),
        kept=() if two or draw.random() < 0.5 else (layers - 1,),
        two_ranks=two,
    )
    for _ in range(draw.randint(0, 3)):
        trainer.noise(CollectiveKind.BROADCAST, 64)
    for step in range(draw.randint(3, 5)):
        trainer.step(step)
    for token in range(draw.randint(0, 3)):
        trainer.noise(CollectiveKind.ALL_REDUCE, 8 + token)
    check(trainer)


def test_layers_alike_are_no_iterations() -> None:
    trainer = Trainer([800] * 12)
    trainer.step(0)
    assert period_of(trainer.tokens) is None


def test_what_never_changes_is_no_training() -> None:
    trainer = Trainer([800, 1600])
    for _ in range(6):
        trainer.step(0)
    assert period_of(trainer.tokens) is None


def test_an_iteration_whose_content_stood_still_is_one_all_the_same() -> None:
    """A learning rate that begins at nothing: the first step changed no parameter."""
    trainer = Trainer([800, 1600, 800])
    for step in (0, 0, 1, 2, 3):
        trainer.step(step)
    period = period_of(trainer.tokens)
    assert period is not None and period.start == 0


def test_two_gathers_of_one_size_beside_their_gradients_are_refused_where_order_does_not_tell() -> (
    None
):
    """The root's and the last layer's, both gathered once by two ranks, in one size."""
    trainer = Trainer([800, 800], root=800, kept=(1,), two_ranks=True)
    for step in range(4):
        trainer.step(step)
    assert period_of(trainer.tokens) is None


def test_a_checkpoint_amid_the_run_hides_nothing() -> None:
    trainer = Trainer([800, 1600, 96], root=48, two_ranks=True)
    for step in range(3):
        trainer.step(step)
    for size in (8, 792, 16, 1592, 24, 48):
        trainer.noise(CollectiveKind.ALL_GATHER, size)
    for step in range(3, 6):
        trainer.step(step)
    check(trainer)
