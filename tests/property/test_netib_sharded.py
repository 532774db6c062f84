"""Sharded training from a generator that shares nothing with the reader: the job and its base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import generate
from support.netib.options import Options
from support.netib.shapes import CASES, SMALL
from support.staged import Chain, played
from test_netib_joined import behind, frames_in

from flowcheck.findings.catalog.sharded_jobs import STEP_0_UNKNOWN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import FollowedData, decode_job


@pytest.mark.parametrize(
    "name",
    ["r2-ll-230-sharded", pytest.param("r4-simple-226-sharded-bf16", marks=pytest.mark.nightly)],
)
def test_units_are_those_that_were_gathered_first(name: str, tmp_path: Path) -> None:
    made = generate(CASES[name], tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None and reading.gathered is not None
    assert reading.job.kind is FollowedData.PARAMETERS
    own = [c for c in made.truth.collectives if c.kind == "all_gather" and c.step == 0]
    units = list(dict.fromkeys(c.result for c in own))
    assert [p.nbytes for p in reading.job.parameters] == [len(unit) for unit in units]
    assert reading.gathered.result.tobytes() == b"".join(units)


def test_training_that_is_met_amid_its_run_is_followed_from_a_whole_step_on(
    tmp_path: Path, shm: Path
) -> None:
    made = generate(replace(CASES["r2-ll-230-sharded"], steps=8), tmp_path)
    units: dict[int, dict[bytes, None]] = {}
    for one in made.truth.collectives:
        if one.kind == "all_gather":
            units.setdefault(one.step, {})[one.result] = None
    right = [b"".join(units[step]) for step in sorted(units)]
    files = [
        behind(file, int(0.28 * frames_in(file)), tmp_path / str(n))
        for n, file in enumerate(made.files)
    ]
    chain = Chain(tmp_path, shm / "memory", files, 512)
    found = played(chain, 32)
    job = decode_job(chain.run.learned_job.read_bytes())
    began = chain.run.weights.read_bytes()
    chain.close()
    assert job.midstream and not job.awaits_base and STEP_0_UNKNOWN() in job.assumed
    assert began in right
    later = right[right.index(began) + 1 :]
    assert len(found) >= len(later) - 1 and list(found.values()) == later[: len(found)]


LAYERS = ((40, 48),) * 4
LATE = {
    "r4-simple": Options(
        ranks=4, protocol="Simple", shapes=((60, 48), (60,), (5, 64)), version=(2, 30),
        sharded=True, mirrored=(1,), steps=5,
    ),
    "r8-simple-layers-alike": Options(
        ranks=8, protocol="Simple", shapes=LAYERS, version=(2, 26), channels=2, sharded=True,
        mirrored=(2,), steps=5,
    ),
    "r3-simple-lossy": Options(
        seed=7006, ranks=3, protocol="Simple", shapes=SMALL, sharded=True, lose=2, steps=6,
    ),
    "r2-simple-bf16": Options(
        protocol="Simple", shapes=SMALL, version=(2, 23), sharded=True, dtype="bfloat16", steps=5
    ),
}  # fmt: skip


WHOLE = {
    # The sends of eight ranks' gathers, all of one size, are as many as those of fewer ranks'.
    "r8-ll-layers-alike": Options(
        seed=7107, ranks=8, shapes=((96, 40),) * 6, version=(2, 30), channels=2, qps=2,
        dtype="bfloat16", sharded=True, steps=4, random_qpns=True, mirrored=(3,),
    ),
    # Where packets were lost sends fit kinds of collectives that would be others on the wire.
    "r2-simple-lossy": Options(
        seed=7111, protocol="Simple", mix=((1024, "LL"),), shapes=((300, 120), (120,), (5, 120)),
        version=(2, 21), sharded=True, lose=2, mirrored=(1,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_training_seen_from_its_start_is_of_as_many_ranks_as_gather(
    name: str, tmp_path: Path
) -> None:
    _is_of_its_ranks(WHOLE[name], 0, tmp_path)


@pytest.mark.parametrize("name", LATE)
def test_training_of_many_ranks_met_amid_its_run_begins_with_a_whole_step(
    name: str, tmp_path: Path
) -> None:
    """Blocks that are sent on as they came tell how many ranks there are."""
    _is_of_its_ranks(LATE[name], 0.2, tmp_path)


def _is_of_its_ranks(options: Options, share: float, folder: Path) -> None:
    """The job is of as many ranks as the generator's, and the parameters are those gathered."""
    reading, units = _met(options, share, folder)
    assert reading.job is not None, reading.why_not
    assert reading.job.communicators[0].ranks == options.ranks
    assert _parameters(reading) in units


def test_layers_that_fill_lines_alike_give_no_parameters_that_nobody_gathered(
    tmp_path: Path,
) -> None:
    small = Options(
        ranks=8, protocol="LL128", shapes=SMALL, version=(2, 23), sharded=True, mirrored=(4,),
        steps=6,
    )  # fmt: skip
    reading, units = _met(small, 0.2, tmp_path)
    assert reading.job is None or _parameters(reading) in units


def _met(options: Options, share: float, folder: Path) -> tuple[Reading, list[bytes]]:
    """(what is read of a capture that began amid the run, [step] its units in their order)."""
    made = generate(options, folder)
    units: dict[int, dict[bytes, None]] = {}
    for one in made.truth.collectives:
        if one.kind == "all_gather":
            units.setdefault(one.step, {})[one.result] = None
    files = [
        behind(file, int(share * frames_in(file)), folder / str(n))
        for n, file in enumerate(made.files)
    ]
    tape = read_capture_files(files)
    return read_stream(tape.flows, tape.messages), [b"".join(one) for one in units.values()]


def _parameters(reading: Reading) -> bytes:
    assert reading.gathered is not None
    return reading.gathered.result.tobytes()
