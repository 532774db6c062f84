"""Frames that drawn mirrors lost: what a step is said to lack is all that is not the truth's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.cut import gradient_of, is_true_but_for
from support.netib import Options, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from support.staged import Chain, played

SHAPES = (
    ((300, 311), (311,), (90, 311), (91,)),
    ((64, 100), (64,), (10, 64), (10,)),
    ((), (130, 77), (77,), (3,), (200,)),
    ((512,), (512,), (512,), (512,)),
)
CAPS_BYTES = (40000, 90000), (1 << 20, 25 << 20), (2000, 9000)


def drawn_job(dice: random.Random, seed: int) -> Options:
    return Options(
        seed=seed,
        ranks=dice.choice((2, 3, 4)),
        shapes=dice.choice(SHAPES),
        protocol=dice.choice(("LL128", "Simple", "LL", "Simple")),
        version=dice.choice(((2, 19), (2, 26))),
        channels=dice.choice((1, 2)),
        steps=dice.choice((6, 8, 10)),
        caps_bytes=dice.choice(CAPS_BYTES),
        metric_every=dice.choice((0, 0, 1, 2)),
        mirrored=dice.choice(((0,), (0,), (0, 1))),
        mtu=dice.choice((1024, 4096)),
    )


def lose(file: Path, dice: random.Random) -> None:
    """Drops frames of a mirror, one by one or in bursts, from its middle on."""
    capture = file.read_bytes()
    records = records_of(capture)
    rate, longest = dice.choice((1e-3, 3e-3, 1e-2)), dice.choice((1, 1, 4, 20))
    gone: set[int] = set()
    for number in range(len(records) // 2, len(records)):
        if dice.random() < rate:
            gone.update(range(number, number + dice.randint(1, longest)))
    kept = (record for number, record in enumerate(records) if number not in gone)
    file.write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(kept))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n not in (5, 6))) for n in range(1, 1000)],
)
def test_all_but_what_a_step_lacks_is_true(seed: int, tmp_path: Path, shm: Path) -> None:
    dice = random.Random(seed)
    made = generate(drawn_job(dice, seed), tmp_path)
    for file in made.files:
        lose(file, dice)
    chain = Chain(tmp_path, shm / "memory", made.files, 512)
    found = played(chain, 32)
    chain.close()
    for step, gradient in found.items():
        assert gradient == gradient_of(made.truth, step - 1)
    for step, (gradient, missing) in chain.partial.items():
        assert is_true_but_for(gradient, missing, gradient_of(made.truth, step - 1))
    steps = sorted({**found, **chain.partial})
    assert steps == list(range(1, len(steps) + 1))
