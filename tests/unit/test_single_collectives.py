"""Collectives alone on a communicator, of no trainer known: told apart, counted, never false."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Generated, Options, capture, generate
from support.netib.reduction import all_gather, all_reduce, reduce_scatter
from support.netib.trainer import Trainer

from flowcheck.findings.catalog.collective_evidence import ONE_ALL_REDUCE
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

TIMES = 4


class Alone(Trainer):
    """The same collective again and again, of other values each time."""

    def train(self) -> None:
        options = self.options
        for self.step in range(TIMES):
            self.fabric.wait(3000)
            whole = [self.random(8 * options.ranks * 90, 1) for _ in range(options.ranks)]
            if options.habit == "reduce_scatter":
                self.run(reduce_scatter(options, whole))
            elif options.habit == "all_gather":
                self.run(all_gather(options, [self.rng.bytes(3104) for _ in whole]))
            else:
                self.run(all_reduce(options, whole))


def read(
    folder: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> tuple[Generated, Reading]:
    monkeypatch.setattr(capture, "Trainer", Alone)
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    return made, read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize(
    ("ranks", "mirrored", "protocol"),
    [
        (3, (1,), "LL"),
        (4, (1, 2), "Simple"),
        pytest.param(3, (1,), "Simple", marks=pytest.mark.nightly),
        pytest.param(4, (1, 2), "LL", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "all_reduce"])
def test_each_kind_is_told(
    kind: str,
    ranks: int,
    mirrored: tuple[int, ...],
    protocol: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(
        ranks=ranks, protocol=protocol, version=(2, 23), mirrored=mirrored, habit=kind
    )
    made, found = read(tmp_path, options, monkeypatch)
    assert [c.kind for c in found.collectives] == [kind] * TIMES
    results = [c.sha256 for c in made.truth.collectives]
    told = [c.sha256 for c in found.collectives]
    assert told == ([None] * TIMES if kind == "reduce_scatter" else results)
    assert found.job is None


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_of_two_ranks_an_all_reduce_of_even_sizes_is_assumed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(protocol="Simple", version=(2, 23), habit=kind)
    _, found = read(tmp_path, options, monkeypatch)
    assert {c.kind for c in found.collectives} == {"all_reduce"}
    assert all(ONE_ALL_REDUCE() in c.assumed for c in found.collectives)
