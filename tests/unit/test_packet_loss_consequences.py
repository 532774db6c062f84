"""What `analyze` says of lost packets, against the sums that the trainers really made."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from flowcheck.findings.catalog import capture_file_problems as problems
from flowcheck.findings.finding import Finding
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
    write_pcap,
)
from flowcheck.ops.analysis import analyze_command
from flowcheck.ops.analysis.job_hints import hints_from_options
from flowcheck.ops.analysis.packet_loss_consequences import loss_findings
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading

STEPS = 4
BUCKETS = {"one bucket": None, "two buckets": ((3, 2), (1, 0))}


@pytest.fixture(scope="module", params=BUCKETS)
def traffic(request: pytest.FixtureRequest) -> SyntheticTraffic:
    return make_traffic(SyntheticJob(steps=STEPS, buckets=BUCKETS[request.param]))


def read_without(traffic: SyntheticTraffic, dropped: set[int], path: Path) -> Reading:
    frames = traffic.frames_at_port(0)
    write_pcap(path, [frame for n, frame in enumerate(frames) if n not in dropped])
    return hints_from_options(None, None).read(read_capture_files([path]))


def wrong_steps(traffic: SyntheticTraffic, reading: Reading) -> list[int]:
    """Steps of which a sum is not what the trainers made, by the order in which they made them."""
    sums = [n for n, (kind, _) in enumerate(traffic.collectives) if kind == "all_reduce"]
    first = len(sums) - (STEPS - 1) * (later := (len(sums) - 1) // (STEPS - 1))
    assert len(reading.collectives) == len(traffic.collectives)
    wrong = [reading.collectives[n].result.tobytes() != traffic.collectives[n][1] for n in sums]
    return sorted(
        {1 if at < first else 2 + (at - first) // later for at, bad in enumerate(wrong) if bad}
    )


def test_the_steps_that_it_names_are_those_whose_sums_are_not_the_trainers(
    traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    draw = random.Random(7)
    frames = len(traffic.frames_at_port(0))
    seen: set[str] = set()
    for _ in range(24):
        dropped = set(draw.sample(range(frames // 3, frames), draw.choice((1, 2))))
        reading = read_without(traffic, dropped, tmp_path / "lossy.pcap")
        if reading.job is None:
            continue
        wrong, found = wrong_steps(traffic, reading), loss_findings(reading)
        if wrong:
            [one] = found
            assert one.is_any_of(problems.LOSS_STOPS_REPLICA), (dropped, one)
            assert one.arguments["steps"] == tuple(map(str, wrong))
            assert one.arguments["first"] == wrong[0]
            exact = one.arguments["exact"]
            assert isinstance(exact, Finding)
            last = exact.arguments.get("last", exact.arguments.get("step", 0))
            assert last == wrong[0] - 1, "the steps before it are the trainers'"
        else:
            assert all(one.is_any_of(problems.LOSS_WITHOUT_EFFECT) for one in found)
        seen.update(one.code for one in found)
    assert seen == {problems.LOSS_STOPS_REPLICA.code, problems.LOSS_WITHOUT_EFFECT.code}


def test_a_whole_capture_has_nothing_of_it(traffic: SyntheticTraffic, tmp_path: Path) -> None:
    reading = read_without(traffic, set(), tmp_path / "whole.pcap")
    assert loss_findings(reading) == [] and wrong_steps(traffic, reading) == []


def test_a_loss_in_the_start_up_is_told_as_that(tmp_path: Path) -> None:
    traffic = make_traffic(SyntheticJob(steps=2))
    frames = traffic.frames_at_port(0)
    for at in range(len(frames) // 4):
        reading = read_without(traffic, {at, at + 1, at + 2}, tmp_path / "lossy.pcap")
        if reading.weights is not None and reading.weights.missing:
            break
    assert reading.weights is not None and reading.weights.result.tobytes() != traffic.weights
    [one] = loss_findings(reading)
    assert one.is_any_of(problems.LOSS_IN_START_UP) and "flowcheck base FILE" in one.remedy
    missing = sum(stop - start for start, stop in reading.weights.missing)
    assert one.arguments["bytes"] == missing > 0


@pytest.mark.parametrize("every", [29, pytest.param(4, marks=pytest.mark.nightly)])
def test_without_a_job_no_step_is_called_exact(
    traffic: SyntheticTraffic, tmp_path: Path, every: int
) -> None:
    """Nobody read what the steps are: even where each collective that was read is whole."""
    frames = traffic.frames_at_port(0)
    seen: set[str] = set()
    for keep in range(len(frames) // 3, len(frames), every):
        dropped = {*range(keep), keep + 9}  # without the start-up no job is read
        reading = read_without(traffic, dropped, tmp_path / "late.pcap")
        assert reading.job is None
        seen.update(one.code for one in loss_findings(reading))
    assert problems.LOSS_OF_UNREAD.code in seen
    assert seen <= {problems.LOSS_OF_UNREAD.code, problems.LOSS_WITHOUT_JOB.code}


def test_text_and_json_say_it(
    traffic: SyntheticTraffic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lossy.pcap"
    frames = len(traffic.frames_at_port(0))
    for at in range(frames - 40, frames):
        if wrong_steps(traffic, read_without(traffic, {at}, path)):
            break
    analyze_command.run([path], as_json=True)
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert [one["code"] for one in notes] == [problems.LOSS_STOPS_REPLICA.code]
    assert notes[0]["arguments"]["first"] == STEPS
    analyze_command.run([path])
    said = " ".join(capsys.readouterr().out.split())
    assert notes[0]["sentence"] in said


def test_a_capture_that_is_cut_off_is_not_said_to_have_lost_copies(
    traffic: SyntheticTraffic, tmp_path: Path
) -> None:
    """A dropped copy before the last one is still told as a loss, however the capture ends."""
    frames = len(traffic.frames_at_port(0))
    seen: set[str] = set()
    for stop in range(frames // 2, frames, frames // 14):
        cut_off = set(range(stop, frames))
        reading = read_without(traffic, cut_off, tmp_path / "cut.pcap")
        if reading.job is None or not (found := loss_findings(reading)):
            continue
        [one] = found
        assert one.is_any_of(problems.ENDS_INSIDE_STEP), (stop, one)
        sums = [c for c in reading.collectives if c.kind == "all_reduce"]
        assert sums[-1].missing and not any(c.missing for c in sums[:-1])
        exact = one.arguments["exact"]
        assert (
            isinstance(exact, Finding)
            and exact.arguments.get("last", exact.arguments.get("step"))
            == one.arguments["step"] - 1
        )
        assert "switch check" not in f"{one} {one.remedy}"
        lossy = read_without(traffic, {frames // 2 - 9, *cut_off}, tmp_path / "lossy.pcap")
        seen.update(other.code for other in loss_findings(lossy))
    assert problems.LOSS_STOPS_REPLICA.code in seen
    assert problems.ENDS_INSIDE_STEP.code not in seen


def test_a_capture_without_packets_is_not_said_to_hold_another_transport(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pcap(tmp_path / "empty.pcap", [])
    analyze_command.run([tmp_path / "empty.pcap"], as_json=True)
    [note] = json.loads(capsys.readouterr().out)["notes"]
    assert note["code"] == problems.NO_PACKETS.code
    analyze_command.run([tmp_path / "empty.pcap"])
    assert capsys.readouterr().out.startswith("0 frames\n")
