"""Extractors of several jobs behind one capture: each takes a job that no other one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.cut import behind, frames_in, strides, truth_of
from support.merged import merged
from support.netib import Generated, Options, generate
from support.staged import Chain, Heard

from flowcheck.config import JobConfig, OptimizerConfig, ReplicaConfig, RingConfig, SourceConfig
from flowcheck.findings.catalog.midstream_jobs import MIXED_AMID_RUN
from flowcheck.messages import Drained
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.extraction.extract_stage import ExtractService
from flowcheck.stages.job_learning.job_selection import claimed_flows
from flowcheck.stages.job_learning.remembered_job import REMEMBERED_JOB_FILE, STATED_MODEL_FILE
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.learn.jobs.late.amid import Expected
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter, decode_job, encode_job

ONE = Options(shapes=((40, 30), (40,)), version=(2, 30), steps=4, random_qpns=True)
SLOTS = 1 << 12
CONFIG = JobConfig(
    source=(SourceConfig(file="0"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    jobs=2,
    ring=RingConfig(slots=SLOTS),
    replica=ReplicaConfig(joins=False),
)


def apply(run: RunDir, taken: dict[int, bytes]) -> None:
    """As the updater does."""
    if not run.shard.exists():
        return
    with GradientShard.open(run.shard) as shard:
        step = shard.applied_iteration + 1
        generation = shard.generation_of(step)
        if generation is not None and shard.generation_state(generation).name == "COMPLETE":
            taken[step] = shard.gradient(generation).tobytes()
            shard.apply(step)


def taken_of(
    files: list[Path],
    folder: Path,
    shm: Path,
    *,
    known: Expected | None = None,
    before: Sequence[LearnedJob] = (),
) -> tuple[list[dict[int, bytes]], list[RunDir], list[str]]:
    """[job] the gradients that its extractor hands over, by step; its run directory; why it handed
    over no more. known: a model that is stated of both; before: [job] as it was followed before."""
    chain = Chain(folder, shm / "memory", files, SLOTS, readers=2)
    second = RunDir.create(chain.run.job_run_dir(2).root, shm / "memory")
    (second.root / "port").symlink_to(chain.run.root)
    runs = [chain.run, second]
    for run in runs if known is not None else ():
        (run.learned_folder / STATED_MODEL_FILE).write_bytes(msgspec.json.encode(known))
    for run, job in zip(runs, before, strict=False):
        (run.learned_folder / REMEMBERED_JOB_FILE).write_bytes(encode_job(job))
    joins = known is not None or bool(before)
    config = msgspec.structs.replace(CONFIG, replica=ReplicaConfig(joins=joins))
    services = [ExtractService(run, config) for run in runs]
    heard = [Heard(), Heard()]
    for service, own in zip(services, heard, strict=True):
        service.start(own)  # type: ignore[arg-type]
    taken: list[dict[int, bytes]] = [{}, {}]
    for _ in range(100_000):
        chain.feed()
        for service, run, own in zip(services, runs, taken, strict=True):
            service.work()
            apply(run, own)
        if all(service.drained() for service in services):
            break
    with FrameRing.open(chain.run.ring(0), reader=1) as ring:
        assert ring.tail == ring.least_tail == ring.head
    for service in services:
        service.stop()
    chain.close()
    return taken, runs, [one.of(Drained)[0].why for one in heard]


def two_jobs(folder: Path, *options: Options) -> tuple[list[Generated], Path]:
    made = []
    for number, one in enumerate(options):
        (folder / str(number)).mkdir()
        made.append(generate(one, folder / str(number)))
    return made, merged([m.files[0] for m in made], folder / "both.pcap")


def test_two_extractors_take_a_job_each_and_every_frame(shm: Path, tmp_path: Path) -> None:
    made, capture = two_jobs(tmp_path, ONE, replace(ONE, seed=2, ipv6=True))
    taken, runs, _ = taken_of([capture], tmp_path, shm)
    first = [m.truth.gradients[0].result for m in made]
    assert sorted(own[1] for own in taken) == sorted(first)
    assert [len(own) for own in taken] == [ONE.steps] * 2
    flows = [claimed_flows(run) for run in runs]
    assert flows[0] and flows[1] and not {*flows[0][0]} & {*flows[1][0]}
    runs[0].remove()


def expected(made: Generated) -> Expected:
    return Expected(
        parameters=tuple(
            Parameter(sizes=shape, strides=strides(shape), dtype="float32") for shape in ONE.shapes
        ),
        buckets=tuple(map(tuple, made.truth.buckets)),
    )


@pytest.mark.parametrize(
    "ipv6", [True, pytest.param(False, id="between-the-same-hosts", marks=pytest.mark.nightly)]
)
def test_jobs_that_were_followed_before_are_joined_where_they_are(
    shm: Path, tmp_path: Path, ipv6: bool
) -> None:
    long = replace(ONE, steps=7, seed=7)
    made, capture = two_jobs(tmp_path, long, replace(long, seed=107, ipv6=ipv6))
    (tmp_path / "whole").mkdir()
    _, runs, _ = taken_of([capture], tmp_path / "whole", shm / "whole")
    before = [decode_job(run.learned_job.read_bytes()) for run in runs]
    files = [behind(capture, int(0.4 * frames_in(capture)), tmp_path / "cut")]
    for turn in (before, before[::-1]):
        folder = tmp_path / f"then-{turn is before}"
        folder.mkdir()
        taken, _, _ = taken_of(files, folder, shm / folder.name, before=turn)
        found = [list(own.values()) for own in taken]
        ends = [[truth_of(m.truth)[-len(own) :] for m in made] for own in found]
        assert all(own and own in end for own, end in zip(found, ends, strict=True))
        assert found[0][-1] != found[1][-1]


def test_rings_of_one_size_between_the_same_hosts_are_not_joined(shm: Path, tmp_path: Path) -> None:
    long = replace(ONE, steps=8, seed=7)  # queue pairs' numbers speak for mixed ones
    made, capture = two_jobs(tmp_path, long, replace(long, seed=107))
    files = [behind(capture, int(0.4 * frames_in(capture)), tmp_path / "cut")]
    taken, runs, why = taken_of(files, tmp_path, shm, known=expected(made[0]))
    assert taken == [{}, {}] and MIXED_AMID_RUN() in why[0].arguments["reasons"]
    runs[0].remove()


def test_two_jobs_of_one_model_are_joined_amid_their_run(shm: Path, tmp_path: Path) -> None:
    long = replace(ONE, steps=8)
    made, capture = two_jobs(tmp_path, long, replace(long, seed=2, ipv6=True))
    files = [behind(capture, int(0.4 * frames_in(capture)), tmp_path / "cut")]
    taken, runs, _ = taken_of(files, tmp_path, shm, known=expected(made[0]))
    found = sorted(list(own.values()) for own in taken)
    right = sorted(truth_of(m.truth)[-len(own) :] for m, own in zip(made, found, strict=True))
    assert found == right and all(len(own) >= 3 for own in found)
    flows = [claimed_flows(run) for run in runs]
    assert flows[0] and flows[1] and not {*flows[0][0]} & {*flows[1][0]}
    assert all(decode_job(run.learned_job.read_bytes()).awaits_base for run in runs)
    runs[0].remove()
