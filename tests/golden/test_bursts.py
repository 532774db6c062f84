"""A burst of frames lost anywhere: parcels and all-reduces of different steps never mix."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.captured import NAMES, Frame, Truth, read_frames, write_pcap

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

NAME = "iter_40000_p2p_iter10"


@pytest.fixture(scope="module")
def frames(captures: Path) -> list[Frame]:
    return read_frames(captures / f"{NAME}.pcapng")


def read(frames: list[Frame], folder: Path) -> Reading:
    tape = read_capture_files([write_pcap(folder / "burst.pcap", frames)])
    return read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize(
    ("size", "step"),
    [
        pytest.param(141, 9, marks=pytest.mark.nightly),
        (10, 31),
        pytest.param(1, 47, marks=pytest.mark.nightly),
    ],
)
def test_after_any_burst_every_hash_is_one_the_truth_has(
    size: int, step: int, frames: list[Frame], truth: Path, tmp_path: Path
) -> None:
    hashes = [a["sha256_le"] for a in Truth(truth, NAME).all_reduces]
    told = 0
    for start in range(0, len(frames) - size, step):
        reading = read(frames[:start] + frames[start + size :], tmp_path)
        found = [c for c in reading.collectives if c.kind == "all_reduce"]
        assert len(found) <= len(hashes), f"made up by the burst at frame {start}"
        whole = [c.sha256 for c in found if c.sha256]
        assert set(whole) <= set(hashes), f"mixed by the burst at frame {start}"
        assert whole == [h for h in hashes if h in whole], f"out of order at frame {start}"
        told += len(whole)
    runs = len(range(0, len(frames) - size, step))
    # Two thirds of the file are three quarters of the steps: most of it must still be told.
    assert told > runs * len(hashes) * 0.7


def test_a_burst_over_two_steps_costs_those_two_alone(
    frames: list[Frame], truth: Path, tmp_path: Path
) -> None:
    """Frames 161 to 301 hold one parcel, two all-reduces, and the next parcel."""
    hashes = [a["sha256_le"] for a in Truth(truth, NAME).all_reduces]
    reading = read(frames[:160] + frames[301:], tmp_path)
    whole = [c.sha256 for c in reading.collectives if c.kind == "all_reduce" and c.sha256]
    assert set(whole) <= set(hashes)
    assert len(whole) >= len(hashes) - 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("far", [3, 30])
def test_frames_out_of_order_cost_nothing(
    name: str, far: int, captures: Path, truth: Path, tmp_path: Path
) -> None:
    frames = read_frames(captures / f"{name}.pcapng")
    dice = random.Random(f"{name} {far}")
    order = sorted(range(len(frames)), key=lambda i: i + dice.uniform(0, far))
    times = [(f.seconds, f.microseconds) for f in frames]
    mixed = [
        replace(frames[i], seconds=at[0], microseconds=at[1])
        for i, at in zip(order, times, strict=True)
    ]
    found = [c for c in read(mixed, tmp_path).collectives if c.kind == "all_reduce"]
    assert [c.sha256 for c in found] == [a["sha256_le"] for a in Truth(truth, name).all_reduces]


@pytest.mark.nightly
def test_a_channel_that_lost_its_start_is_not_left_out_of_the_tensor(
    captures: Path, truth: Path, tmp_path: Path
) -> None:
    """Without its first sends the second channel looks like a broadcast of its own."""
    name = "allreduce_addstep"
    frames = read_frames(captures / f"{name}.pcapng")
    hashes = {a["sha256_le"] for a in Truth(truth, name).all_reduces}
    for start in range(270, 300, 2):
        reading = read(frames[:start] + frames[start + 40 :], tmp_path)
        whole = {c.sha256 for c in reading.collectives if c.kind == "all_reduce" and c.sha256}
        assert whole <= hashes, f"burst at frame {start}"
