"""A stream cut anywhere through parser and extract stage: every whole step behind the cut."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cut import behind, frames_in, strides, truth_of
from support.lives import Both
from support.netib import Options, generate
from support.staged import Chain, dealt, played
from test_netib_followed import SMALL, WIDE

from flowcheck.findings.catalog.midstream_jobs import NO_RING_FITS
from flowcheck.findings.finding import Finding
from flowcheck.messages import Drained, StepLost
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.job_learning.remembered_job import REMEMBERED_JOB_FILE
from flowcheck.stages.job_learning.remembered_job import STATED_MODEL_FILE as EXPECTED_FILE
from flowcheck.stages.replica_update.gradient_logs import open_gradient_log
from flowcheck.wire.learn.jobs.late.amid import Expected
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter, decode_job, encode_job

SHAPES = {
    "ll": Options(shapes=SMALL, steps=7),
    "ll-230": Options(shapes=SMALL, steps=7, version=(2, 30), caps_bytes=(1000, 8000)),
    "simple-3-ranks": Options(
        shapes=WIDE, ranks=3, steps=7, version=(2, 23), protocol="Simple", caps_bytes=(9000, 90000)
    ),
    "ll128-2-channels": Options(
        shapes=WIDE,
        steps=7,
        version=(2, 26),
        protocol="LL128",
        channels=2,
        caps_bytes=(9000, 90000),
    ),
    "metric": Options(shapes=SMALL, steps=9, version=(2, 23), metric_every=2),
    "adaptive": Options(shapes=WIDE, steps=7, version=(2, 21), protocol="Simple", adaptive=True),
    "queue-pairs": Options(
        shapes=WIDE, steps=7, version=(2, 23), protocol="Simple", qps=3, caps_bytes=(9000, 90000)
    ),
    "queue-pairs-ll": Options(shapes=SMALL, ranks=3, steps=7, version=(2, 26), channels=2, qps=2),
    "split": Options(
        shapes=WIDE, steps=7, version=(2, 19), protocol="LL128", qps=2, caps_bytes=(9000, 90000)
    ),
    "split-simple": Options(shapes=WIDE, steps=7, version=(2, 19), protocol="Simple", qps=4),
    "two-mirrors": Options(
        shapes=SMALL, ranks=3, steps=7, version=(2, 23), channels=2, mirrored=(0, 1)
    ),
}


QUICK = {"test_cut": "simple-3-ranks", "test_gap": "ll", "test_stated": "ll128-2-channels"}


STATED = ["ll", "simple-3-ranks", "ll128-2-channels", "two-mirrors", "metric"]


def drawn(test: str, names: Iterable[str]) -> list[Any]:
    """One shape each time, the others at night."""
    return [
        pytest.param(name, marks=[] if QUICK[test] == name else [pytest.mark.nightly])
        for name in names
    ]


def learned(folder: Path, shm: Path, files: list[Path]) -> LearnedJob:
    """The job by its start-up."""
    folder.mkdir()
    chain = Chain(folder, shm / "whole", files, 512)
    played(chain, 32)
    chain.close()
    return decode_job(chain.run.learned_job.read_bytes())


def without(file: Path, first: float, last: float, folder: Path) -> Path:
    """What a capture holds that was down between these shares of it."""
    start, stop = int(first * frames_in(file)), int(last * frames_in(file))
    return dealt(file, folder, 1, lambda at, _: None if start <= at < stop else 0)[0]


def joined(
    folder: Path, shm: Path, files: list[Path], known: LearnedJob | Expected
) -> tuple[list[bytes], Finding | None]:
    """The gradients taken, in order, and what kept it from more."""
    chain = Chain(folder, shm / "memory", files, 512, joins=True)
    if isinstance(known, Expected):
        (chain.run.learned_folder / EXPECTED_FILE).write_bytes(msgspec.json.encode(known))
    else:
        (chain.run.learned_folder / REMEMBERED_JOB_FILE).write_bytes(encode_job(known))
    found = played(chain, 32)
    chain.close()
    assert list(found) == list(range(1, len(found) + 1))
    [end] = chain.heard.of(Drained)
    return list(found.values()), end.why


def kept(both: Both) -> list[bytes]:
    """The gradients that wait for a base."""
    with GradientShard.open(both.chain.run.shard) as shard:
        log = open_gradient_log(both.chain.run, both.config, shard.gradient_bytes)
    found = [log.read(index).tobytes() for index in range(len(log.iterations))]
    log.close()
    return found


@pytest.mark.parametrize("name", drawn("test_cut", SHAPES))
def test_cut_anywhere(name: str, tmp_path: Path, shm: Path) -> None:
    options = SHAPES[name]
    made = generate(options, tmp_path)
    known = learned(tmp_path / "whole", shm, made.files)
    right = truth_of(made.truth)
    draw = random.Random(name)
    counts = [frames_in(file) for file in made.files]
    for attempt in range(2):
        share = draw.uniform(0.3, 0.75)
        folder = tmp_path / f"cut-{attempt}"
        folder.mkdir()
        files = [
            behind(file, int(share * count), folder / str(n))
            for n, (file, count) in enumerate(zip(made.files, counts, strict=True))
        ]
        found, why = joined(folder, shm / f"{attempt}", files, known)
        assert found, (share, why)
        assert found == right[-len(found) :], share
        # What comes only now and then lies between steps: then the last ones alone may tell.
        least = 1 if options.metric_every else int((1 - share) * options.steps) - 1
        assert len(found) >= least


@pytest.mark.parametrize(
    "name", drawn("test_gap", [*STATED[:-1], "queue-pairs", "queue-pairs-ll", "split"])
)
def test_gap_anywhere(name: str, tmp_path: Path, shm: Path) -> None:
    options = replace(SHAPES[name], steps=12)
    made = generate(options, tmp_path)
    right = truth_of(made.truth)
    draw = random.Random(name)
    first = draw.uniform(0.4, 0.55)
    last = first + draw.uniform(0.02, 0.2)
    files = [without(file, first, last, tmp_path / f"gap-{n}") for n, file in enumerate(made.files)]
    chain = Chain(tmp_path, shm / "memory", files, 512)
    both = Both(chain, source=[{"file": "0"}] * len(files), replica={"joins": True})
    both.drive(patient=True)
    taken = [json.loads(line) for line in chain.run.steps.read_text().splitlines()]
    hashes = [hashlib.sha256(gradient).hexdigest() for gradient in right]
    found = kept(both)
    both.close()
    whole = [line for line in taken if not line.get("missing_elements")]
    assert all(line["gradient_sha256"] == hashes[line["step"] - 1] for line in whole)
    assert len(whole) >= int(first * options.steps) - 2
    if not chain.heard.of(StepLost):
        # The size of each message told how many are missing: all steps are taken, some in part.
        assert [line["step"] for line in taken] == [*range(1, options.steps + 1)]
        assert len(whole) < options.steps
        return
    # The step in which the gap begins may be taken as far as it came: test_lost_messages judges it.
    assert whole == taken[: len(whole)] and len(taken) - len(whole) <= 1
    assert found == right[-len(found) :]
    assert len(found) >= int((1 - last) * options.steps) - 2


@pytest.mark.parametrize("name", drawn("test_stated", STATED))
def test_joined_by_a_stated_model(name: str, tmp_path: Path, shm: Path) -> None:
    options = SHAPES[name]
    made = generate(options, tmp_path)
    right = truth_of(made.truth)
    share = random.Random(name).uniform(0.3, 0.5)
    files = [
        behind(file, int(share * frames_in(file)), tmp_path / str(n))
        for n, file in enumerate(made.files)
    ]
    parameters = tuple(
        Parameter(sizes=shape, strides=strides(shape), dtype="float32") for shape in options.shapes
    )
    stated = Expected(parameters=parameters, buckets=tuple(map(tuple, made.truth.buckets)))
    found, why = joined(tmp_path, shm, files, stated)
    assert found, why
    assert found == right[-len(found) :]
    other = Expected(parameters=parameters[1:], buckets=(tuple(range(len(parameters) - 1)),))
    (tmp_path / "other").mkdir()
    found, why = joined(tmp_path / "other", shm / "other", files, other)
    assert not found and why is not None
    assert any(one.is_any_of(NO_RING_FITS) for one in why.arguments["reasons"])
