"""A capture with a gap is read by the program all the same. The generator's truth judges: what is
told whole is true, and what was not lost is told."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of

from flowcheck.findings.catalog.connections import GAPS_GUESSED, NUMBERED_BY_PROGRAM
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read, read_stream

WIDE = ((300, 311), (311,), (90, 311), (91,))
CAPS = (6000, 17000)
MIXED = ((1024, "LL"), (12000, "LL128"))
JOBS = {
    "ll": Options(ranks=3, shapes=WIDE, caps_bytes=CAPS),
    "ll128": Options(
        ranks=4, shapes=WIDE, protocol="LL128", version=(2, 23), channels=2, caps_bytes=CAPS
    ),
    "simple": Options(
        ranks=4, shapes=WIDE, protocol="Simple", version=(2, 30), channels=4, caps_bytes=CAPS
    ),
    "mixed, bfloat16": Options(
        ranks=8, shapes=WIDE, protocol="Simple", mix=MIXED, version=(2, 26), channels=2,
        dtype="bfloat16", caps_bytes=CAPS, mirrored=(5,),
    ),
    "buffers, Simple": Options(
        ranks=3, shapes=WIDE, protocol="Simple", buffers=96, counters=2, caps_bytes=CAPS
    ),
    "a scalar, Simple": Options(
        ranks=5, shapes=((70, 41), (), (13, 70), (1,)), protocol="Simple", version=(2, 29)
    ),
}  # fmt: skip
ITERATIONS = 6
OPEN_GRADIENTS_MOST = 2
"""A gap of two hundredths of these captures lies in no more buckets."""


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the search was asked")

    monkeypatch.setattr(read, "find_communicators", asked)


def with_gap(file: Path, begin: float, share: float) -> int:
    """Takes frames out of the file; how many."""
    capture = file.read_bytes()
    kept = records_of(capture)
    first, lost = int(begin * len(kept)), max(1, int(share * len(kept)))
    del kept[first : first + lost]
    file.write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(kept))
    return lost


def told(options: Options, folder: Path, begin: float, share: float) -> tuple[Reading, Truth]:
    made = generate(replace(options, steps=ITERATIONS), folder)
    assert all(with_gap(file, begin, share) for file in made.files)
    seen = read_capture_files(made.files)
    return read_stream(seen.flows, seen.messages), made.truth


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        pytest.param(name, begin, marks=[pytest.mark.nightly] * ((place + number) % 3 > 0))
        for place, name in enumerate(JOBS)
        for number, begin in enumerate((0.5, 0.63, 0.77))
    ],
)
def test_what_was_not_lost_is_told_and_nothing_false(
    name: str, begin: float, tmp_path: Path, no_search: None
) -> None:
    reading, truth = told(JOBS[name], tmp_path, begin, 0.02)
    assert reading.job is not None, reading.why_not
    assert [list(bucket) for bucket in reading.job.buckets] == truth.buckets
    held = {hashlib.sha256(each.result).hexdigest() for each in truth.collectives}
    sums = [each for each in reading.collectives if each.kind == "all_reduce"]
    assert all(each.sha256 is None or each.sha256 in held for each in sums)
    whole = {each.sha256 for each in sums}
    gradients = [hashlib.sha256(each.result).hexdigest() for each in truth.gradients]
    assert sum(one not in whole for one in gradients) <= OPEN_GRADIENTS_MOST
    assert not any(p.is_any_of(GAPS_GUESSED) for flow in reading.flows for p in flow.problems)


def test_a_gap_of_many_sends_of_simple_is_counted_by_its_packets(
    tmp_path: Path, no_search: None
) -> None:
    reading, truth = told(JOBS["simple"], tmp_path, 0.5, 0.12)
    told_by = [one for flow in reading.flows for one in flow.numbered_by]
    assert any(one.is_any_of(NUMBERED_BY_PROGRAM) for one in told_by)
    last = hashlib.sha256(truth.gradients[-1].result).hexdigest()
    assert last in {each.sha256 for each in reading.collectives}


@pytest.mark.parametrize(
    "begin", [820, *(pytest.param(n, marks=pytest.mark.nightly) for n in (760, 860, 880))]
)
def test_a_connection_of_single_packets_tells_no_path_mtu(begin: int, tmp_path: Path) -> None:
    """All of its sends fit one packet, those of another channel do not."""
    options = Options(
        seed=349, ranks=4, shapes=((512,),) * 4, protocol="Simple", version=(2, 26), channels=2,
        steps=8, caps_bytes=(2000, 9000), metric_every=1, mtu=4096,
    )  # fmt: skip
    made = generate(options, tmp_path)
    capture = made.files[0].read_bytes()
    records = records_of(capture)
    del records[begin : begin + 20]
    made.files[0].write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(records))
    seen = read_capture_files(made.files)
    assert len({flow.pmtu_bytes for flow in seen.flows}) > 1
    reading = read_stream(seen.flows, seen.messages, ended=True)
    held = {hashlib.sha256(each.result).hexdigest() for each in made.truth.collectives}
    sums = [each for each in reading.collectives if each.kind == "all_reduce"]
    assert all(each.sha256 is None or each.sha256 in held for each in sums)
