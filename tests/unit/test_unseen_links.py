"""Mirrors at ranks that are no neighbours: one ring of which links are unseen; judged by a
generator that shares nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made.truth, read_stream(tape.flows, tape.messages)


def senders(reading: Reading) -> list[int]:
    ring = reading.collectives[-1].ring
    assert ring is not None
    return sorted(link.senders for link in ring.links if isinstance(link.senders, int))


WAYS = {
    "LL": {"protocol": "LL"},
    "Simple, two channels": {"protocol": "Simple", "channels": 2, "version": (2, 23)},
    "LL128": {"protocol": "LL128", "mix": ((1024, "LL"),), "channels": 2, "version": (2, 30)},
    "no rank is named": {"protocol": "Simple", "manners": Manners(tags="zero")},
    "any order": {"protocol": "LL", "manners": Manners(ring="one")},
}
MIRRORS = [
    (4, (0, 2), "tx", 2),
    (6, (0, 3), "both", 4),
    (6, (0, 3), "tx", 2),
    (6, (1, 4), "rx", 2),
    (8, (0, 2, 5), "both", 6),
]


@pytest.mark.parametrize(
    ("way", "mirror"),
    [
        pytest.param(way, mirror, marks=[pytest.mark.nightly] * ((i - j) % len(MIRRORS) > 1))
        for i, way in enumerate(WAYS)
        for j, mirror in enumerate(MIRRORS)
    ],
)
def test_mirrors_at_ranks_that_are_no_neighbours_see_one_ring(
    way: str, mirror: tuple[int, tuple[int, ...], str, int], tmp_path: Path
) -> None:
    """By day each way at two mirrors, and each mirror in two ways."""
    ranks, mirrored, directions, links = mirror
    options = Options(ranks=ranks, mirrored=mirrored, directions=directions, steps=3)
    truth, reading = read(replace(options, **WAYS[way]), tmp_path)
    assert [part.job is not None for part in reading.parts] == [True], reading.why_not
    assert {c.communicator for c in reading.collectives} == {0}
    # In another order the mirrored ranks may be neighbours, and see one link both.
    assert len(senders(reading)) == links or (way == "any order" and links > 2)
    told = [c.result.tobytes() for c in reading.collectives if c.kind != "all_gather"]
    assert told == [c.result for c in truth.collectives if c.kind != "all_gather"]
    assert reading.job is not None and reading.job.communicators[0].ranks == ranks


def test_jobs_at_two_mirrors_whose_gradients_differ_stay_two(tmp_path: Path) -> None:
    """As many ranks, the same model, other addresses and other bytes."""
    made = []
    for seed in (1, 2):
        (folder := tmp_path / str(seed)).mkdir()
        options = Options(seed=seed, ranks=6, mirrored=(3 * (seed - 1),), steps=3)
        made += generate(options, folder).files
    tape = read_capture_files(made)
    reading = read_stream(tape.flows, tape.messages)
    assert [part.job is not None for part in reading.parts] == [True, True]
