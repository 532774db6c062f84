"""Every system call that changes a file of a run directory is a kill point: a start, a later life
of the job that takes over, and what an operator gives, done again behind it, end alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.file_kills import explore, lacks
from support.lifecycle import follow, give_verdict, offer

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig, OptimizerConfig, RingConfig, SourceConfig, encode_config
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard
from flowcheck.stages.extraction.job_restart import (
    INCARNATIONS_KEPT,
    promote_successor,
    remove_stale_offers,
)
from flowcheck.stages.job_state.lifecycle_record_reader import (
    Incarnation,
    incarnation_of,
    read_record,
    restart_verdict,
)
from flowcheck.stages.job_state.lifecycle_record_schema import RestartVerdict
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState, IncarnationState
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle
from flowcheck.stages.run_directory.process_liveness import stale_memory
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CONFIG = JobConfig(
    source=(SourceConfig(file="0"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    ring=RingConfig(slots=64),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as made:
        yield Path(made)


def files(place: Path) -> dict[str, bytes]:
    """What lies below a folder, by path."""
    found = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


RECORDS = {
    "config.json": encode_config(CONFIG),
    "steps.jsonl": b'{"step":1}\n',
    "events.jsonl": b'{"kind":"up"}\n',
    "audits.jsonl": b'{"step":1,"passed":true}\n',
    "update.log": b"a log\n",
    "ended.json": b"{}",
}


@pytest.mark.parametrize("fills", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_start_keeps_all_records_of_the_run_before(folder: Path, fills: int) -> None:
    """Of that one, not a part of them; and of the one before it nothing stays among them."""

    def make(place: Path) -> None:
        (place / "memory").mkdir(mode=0o700)
        run = RunDir.create(place / "run", place / "memory")
        for name, data in RECORDS.items():
            write_atomically(run.root / name, data)
        run.previous.mkdir(mode=0o700)
        for name in ("config.json", "steps.jsonl", "extract.log"):
            write_atomically(run.previous / name, RECORDS.get(name, b"") + b" ")

    def work(place: Path) -> None:
        RunDir.create(place / "run", place / "memory")

    def judge(place: Path, when: str) -> None:
        run = RunDir.create(place / "run", place / "memory")
        assert files(run.previous) == RECORDS, when
        left = set((place / "memory").iterdir()) - {run.memory}
        assert left == set(stale_memory([place / "memory"])), "a start finds and clears it"
        lasting = {path.name for path in run.root.iterdir()}
        assert lasting == {"sockets", "learned", "pids", "memory", "previous"}, when

    assert len(explore(folder, make, work, judge, fills=fills).calls) > 15


@pytest.mark.parametrize("fills", [5, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("number", "weights"),
    [
        pytest.param(1, True, id="the first, seen from its start", marks=pytest.mark.nightly),
        pytest.param(INCARNATIONS_KEPT + 1, True, id="a late one, seen from its start"),
        pytest.param(1, False, id="the first, joined"),
        pytest.param(INCARNATIONS_KEPT + 1, False, id="a late one, joined",
                     marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_later_life_takes_over_whole_or_the_verdict_is_still_there(
    folder: Path, number: int, weights: bool, fills: int
) -> None:
    def make(place: Path) -> None:
        (place / "memory").mkdir(mode=0o700)
        run = RunDir.create(place / "run", place / "memory")
        for name in ("job.json", "names", "numbers", "weights.bin", "beside.bin", "recuts"):
            write_atomically(run.learned_folder / name, b"old " + name.encode())
        write_atomically(run.assumed, b"[]")
        for life in range(1, number):
            (run.history(life) / "next").mkdir(parents=True)
            write_atomically(run.history(life) / "job.json", b"of life %d" % life)
        follow(run, Incarnation(number=number))
        folder = offer(run, number + 1)
        for name in ("job.json", "names", *(["weights.bin", "beside.bin"] * weights)):
            write_atomically(folder / name, b"new " + name.encode())
        give_verdict(run, RestartVerdict(number=number, step=7, iterations=9))
        with GradientShard.create(run.shard, gradient_bytes=64) as shard:
            shard.begin(0, 10)

    def work(place: Path) -> None:
        """As a stage that starts."""
        run = RunDir(place / "run")
        lifecycle = ExtractLifecycle(run, [].append, awaits_base=False)
        with GradientShard.open(run.shard) as shard:
            if (verdict := lifecycle.verdict()) is not None:
                promote_successor(lifecycle, verdict, shard)
        remove_stale_offers(lifecycle)

    def judge(place: Path, when: str) -> None:
        run = RunDir(place / "run")
        pending = restart_verdict(run) is not None
        assert incarnation_of(run).number == number + (not pending), when
        state = IncarnationState.ACCEPTED if pending else IncarnationState.FOLLOWED
        assert read_record(run).state_of(number + 1) is state, when
        if not pending:
            assert run.learned_job.read_bytes() == b"new job.json", when
        work(place)
        learned = files(run.learned_folder)
        own = {path: data for path, data in learned.items() if "/" not in path}
        kept = ["weights.bin", "beside.bin"] if weights else []
        wanted = {name: b"new " + name.encode() for name in ("job.json", "names", *kept)}
        if not weights:
            wanted["beside.bin"] = b"old beside.bin"
        wanted["numbers"] = b""
        assert msgspec.json.decode(own.pop("extract.json"))["state"] == ExtractState.FOLLOWING
        del own["update.json"]
        assert own | {"numbers": b""} == wanted, when
        assert incarnation_of(run).iterations == 9 and incarnation_of(run).step == 7
        past = f"{number}/"
        assert learned[f"{past}job.json"] == b"old job.json", when
        assert learned[f"{past}recuts"] == b"old recuts", when
        assert learned[f"{past}next/job.json"] == b"new job.json", when
        lives = [int(path.name) for path in run.learned_folder.iterdir() if path.is_dir()]
        assert sorted(lives)[-INCARNATIONS_KEPT:] == list(
            range(max(1, number - INCARNATIONS_KEPT + 1), number + 1)
        ), when
        with GradientShard.open(run.shard) as shard:
            assert shard.generation_state(0) == GenerationState.EMPTY, when

    assert len(explore(folder, make, work, judge, fills=fills).calls) > 20
