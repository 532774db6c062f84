"""Two data-parallel jobs on one mirrored port: each told from the other, or neither followed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from support.merged import merged
from support.netib import Generated, Options, generate

from flowcheck.findings.catalog.connections import MIXED
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

ONE = Options(shapes=((40, 30), (40,)), version=(2, 30), steps=4, random_qpns=True)
TWO = replace(ONE, seed=2)


def both(
    folder: Path, one: Options, two: Options, later_us: int
) -> tuple[Reading, list[Generated]]:
    made = []
    for number, options in enumerate((one, two)):
        (folder / str(number)).mkdir()
        made.append(generate(options, folder / str(number)))
    tape = read_capture_files(
        [merged([m.files[0] for m in made], folder / "m.pcap", (0, later_us))]
    )
    return read_stream(tape.flows, tape.messages), made


def nothing_is_mixed(reading: Reading, made: list[Generated]) -> int:
    """No job has anything of another's; how many there are."""
    truth = [hashlib.sha256(m.truth.weights).hexdigest() for m in made]
    sums = [{each.sha256 for each in m.truth.gradients} for m in made]
    jobs = 0
    for part in reading.parts:
        own = [c for c in reading.collectives if c.communicator == part.communicator]
        hashes = {c.sha256 for c in own if c.meaning == "gradient bucket" and c.complete}
        if part.job is None:
            assert not hashes and (part.weights is None or not part.weights.complete)
            continue
        jobs += 1
        assert part.weights is not None and part.weights.sha256 in truth
        assert hashes == sums[truth.index(part.weights.sha256)]
    return jobs


CASES = {
    "equal": (ONE, TWO),
    "ports": (ONE, replace(TWO, ipv6=True)),
    "sizes": (ONE, replace(TWO, shapes=((50, 30), (50,)))),
    "equal-3": (replace(ONE, ranks=3), replace(TWO, ranks=3)),
    "ports-2-channels": (replace(ONE, channels=2), replace(TWO, channels=2, ipv6=True)),
}
QUICK = {("equal", 0), ("ports", 7), ("equal-3", 5000)}


@pytest.mark.parametrize(
    ("case", "later_us"),
    [
        pytest.param(case, later, marks=[] if (case, later) in QUICK else pytest.mark.nightly)
        for case in CASES
        for later in (0, 7, 5000)
    ],
)
def test_each_of_two_jobs_is_told(tmp_path: Path, case: str, later_us: int) -> None:
    reading, made = both(tmp_path, *CASES[case], later_us)
    assert nothing_is_mixed(reading, made) == 2
    assert reading.job == reading.parts[0].job


def test_what_may_be_mixed_is_refused(tmp_path: Path) -> None:
    """Channels of rings of the same sizes between the same addresses, hardly used."""
    reading, made = both(tmp_path, replace(ONE, channels=2), replace(TWO, channels=2), 7)
    assert nothing_is_mixed(reading, made) == 0
    assert reading.job is None and MIXED() in reading.why_not
    assert not [c for c in reading.collectives if c.kind == "all_reduce" and c.complete]


@pytest.mark.nightly
def test_no_sum_is_told_of_connections_that_may_be_mixed(tmp_path: Path) -> None:
    shapes = ((64, 100), (64,), (10, 64), (10,))
    one, two = (replace(ONE, seed=1110 + n, shapes=shapes) for n in range(2))
    reading, made = both(tmp_path, one, two, 2999)
    truth = {each.sha256 for m in made for each in m.truth.collectives}
    told = [c for c in reading.collectives if c.kind == "all_reduce" and c.sha256 and not c.assumed]
    assert {c.sha256 for c in told} <= truth


def test_ports_of_ranks_that_are_no_neighbours_show_one_ring(tmp_path: Path) -> None:
    shapes = ((61, 90), (61,), (40, 61), (40,))
    options = Options(shapes=shapes, ranks=4, channels=2, version=(2, 21), mirrored=(1, 3), steps=2)
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None and {e.sender for e in reading.job.edges} == {0, 1, 2, 3}
    assert {c.communicator for c in reading.collectives} == {0}
    told = [c.sha256 for c in reading.collectives if c.meaning == "gradient bucket"]
    assert told == [one.sha256 for one in made.truth.gradients]
