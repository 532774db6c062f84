"""Connections of several queue pairs: where their order is open, nothing is put together."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream


def read(folder: Path, **options: object) -> tuple[Reading, list[str]]:
    made = generate(Options(**{"qps": 2, "steps": 3, **options}), folder)
    tape = read_capture_files(made.files)
    told = [each.sha256 for each in made.truth.gradients if each.complete]
    return read_stream(tape.flows, tape.messages), told


@pytest.mark.parametrize("split", [False, True], ids=["turns", "split"])
def test_every_queue_pair_is_told_and_the_job_names_them(tmp_path: Path, split: bool) -> None:
    reading, _ = read(tmp_path, split=split, version=(2, 23))
    assert reading.job is not None
    data = [flow for flow in reading.flows if flow.role == "data"]
    assert len(data) == 4
    assert {flow.problems for flow in data} == {()}
    named = [flow for edge in reading.job.edges for flow in edge.all_flows]
    assert sorted(named, key=str) == sorted((flow.seen.key for flow in data), key=str)
    assert {edge.split for edge in reading.job.edges} == {split}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("split", [False, True], ids=["turns", "split"])
def test_with_losses_no_wrong_tensor_is_complete(tmp_path: Path, seed: int, split: bool) -> None:
    reading, told = read(tmp_path, split=split, version=(2, 23), lose=6, seed=seed)
    whole = [c for c in reading.collectives if c.kind == "all_reduce" and not c.missing]
    assert {c.sha256 for c in whole if c.sha256} <= set(told)


LARGE = ((300, 400), (300,), (200, 300), (200,))
FEW = ((96, 100), (64,))


@pytest.mark.parametrize(
    "options",
    [
        {"shapes": LARGE, "qps": 4, "adaptive": True, "protocol": "Simple", "channels": 2},
        {"shapes": FEW, "qps": 4, "ranks": 4, "channels": 4, "compress": "bfloat16", "mtu": 4096},
    ],
    ids=["every-size-told-apart", "one-send-of-a-frame-each"],
)
def test_pieces_are_put_together_whatever_tells_their_size(
    tmp_path: Path, options: dict[str, object]
) -> None:
    reading, told = read(tmp_path, split=True, version=(2, 23), **options)
    assert {flow.problems for flow in reading.flows} == {()}
    assert reading.job is not None
    assert set(told) <= {c.sha256 for c in reading.collectives}


def test_queue_pairs_seen_in_one_direction_are_one_connection_by_their_pieces(
    tmp_path: Path,
) -> None:
    options: dict[str, object] = {"ranks": 4, "channels": 4, "compress": "bfloat16", "mtu": 4096}
    reading, _ = read(
        tmp_path,
        split=True,
        version=(2, 23),
        shapes=FEW,
        qps=4,
        directions="tx",
        mirrored=(1,),
        **options,
    )
    assert {flow.problems for flow in reading.flows} == {()}
    assert reading.job is not None


@pytest.mark.parametrize("seed", [1, 4, 5])
@pytest.mark.parametrize("adaptive", [False, True], ids=["", "sizes-apart"])
def test_what_was_lost_of_a_piece_is_counted_by_the_others(
    tmp_path: Path, seed: int, adaptive: bool
) -> None:
    """A piece's first frame was lost, and with it where it lies and how long it is."""
    reading, told = read(
        tmp_path,
        shapes=((300, 128), (300,), (64, 300), (64,)),
        qps=3,
        split=True,
        adaptive=adaptive,
        protocol="Simple",
        version=(2, 21),
        caps_bytes=(40000, 90000),
        lose=2,
        seed=seed,
    )
    assert {flow.problems for flow in reading.flows} == {()}
    assert reading.job is not None
    whole = {c.sha256 for c in reading.collectives if c.kind == "all_reduce" and not c.missing}
    assert len(whole) >= len(told) - 2 and whole <= set(told)


def test_a_connection_of_empty_sends_alone_is_one_by_their_places(tmp_path: Path) -> None:
    reading, told = read(
        tmp_path,
        shapes=((50, 50), (52,), (500,)),
        split=True,
        ranks=3,
        protocol="LL128",
        channels=2,
        version=(2, 19),
        caps_bytes=(1000, 3000),
        mirrored=(2,),
    )
    assert set(told) <= {c.sha256 for c in reading.collectives}
