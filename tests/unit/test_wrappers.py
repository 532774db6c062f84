"""Scripts that reduce something else than DDP's buckets are refused by what they do on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.findings.catalog.refused_trainers import (
    AVERAGED,
    DELAYED,
    LOW_RANK,
    REDUCED_ONE_BY_ONE,
    TREE_OF_TWO,
)
from flowcheck.findings.finding import Entry
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

SHAPES = ((40, 30), (40,), (30, 40), (30,))


def reading(folder: Path, options: Options) -> Reading:
    tape = read_capture_files(generate(options, folder).files)
    return read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize(("ranks", "protocol"), [(2, "LL"), (3, "Simple")])
@pytest.mark.parametrize(
    ("habit", "named"),
    [
        ("delayed", DELAYED),
        ("each alone", REDUCED_ONE_BY_ONE),
        ("low rank", LOW_RANK),
        ("averages", AVERAGED),
    ],
)
def test_it_is_named(tmp_path: Path, habit: str, named: Entry, ranks: int, protocol: str) -> None:
    options = Options(
        habit=habit,
        ranks=ranks,
        protocol=protocol,
        version=(2, 23),
        shapes=SHAPES,
        caps_bytes=(3000, 3000),
        steps=5,
        mirrored=(1,),
    )
    found = reading(tmp_path, options)
    assert found.job is None
    assert found.why_not[0].is_any_of(named)
    if named is LOW_RANK:
        assert found.why_not[0].arguments["rank"] == 2


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("below", [1 << 30, 7000])
def test_a_tree_is_named(tmp_path: Path, below: int, protocol: str, channels: int) -> None:
    """Of all all-reduces, or of those of few bytes alone."""
    options = Options(
        protocol=protocol,
        channels=channels,
        tree_below=below,
        version=(2, 23),
        shapes=SHAPES,
        caps_bytes=(3000, 3000),
        steps=4,
    )
    found = reading(tmp_path, options)
    assert found.job is None
    assert any(why.is_any_of(TREE_OF_TWO) for why in found.why_not), found.why_not


@pytest.mark.parametrize("habit", ["early", "zero"])
def test_what_only_comes_beside_is_no_reason(tmp_path: Path, habit: str) -> None:
    found = reading(tmp_path, Options(habit=habit, version=(2, 23), shapes=SHAPES, steps=4))
    assert found.job is not None and not found.why_not
    roots = {op.root for op in found.job.each if op.kind == "broadcast"}
    assert roots == ({0, 1} if habit == "zero" else set())
