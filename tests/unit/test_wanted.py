"""Extractors of several jobs behind one capture: each takes a job that no other one has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.merged import merged
from support.netib import Options, generate
from support.staged import Chain, Heard

from flowcheck.config import JobConfig, OptimizerConfig, ReplicaConfig, RingConfig, SourceConfig
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import Shard
from flowcheck.stages.extract import ExtractService
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.wanted import claimed

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
    with Shard.open(run.shard) as shard:
        step = shard.applied_step + 1
        generation = shard.generation_of(step)
        if generation is not None and shard.state(generation).name == "COMPLETE":
            taken[step] = shard.gradient(generation).tobytes()
            shard.apply(step)


def test_two_extractors_take_a_job_each_and_every_frame(shm: Path, tmp_path: Path) -> None:
    made = []
    for number, options in enumerate((ONE, replace(ONE, seed=2, ipv6=True))):
        (tmp_path / str(number)).mkdir()
        made.append(generate(options, tmp_path / str(number)))
    capture = merged([m.files[0] for m in made], tmp_path / "both.pcap")
    chain = Chain(tmp_path, shm / "memory", [capture], SLOTS, readers=2)
    second = RunDir.create(chain.run.beside(2).root, shm / "memory")
    (second.root / "port").symlink_to(chain.run.root)
    runs = (chain.run, second)
    services = [ExtractService(run, CONFIG) for run in runs]
    for service in services:
        service.start(Heard())  # type: ignore[arg-type]
    taken: list[dict[int, bytes]] = [{}, {}]
    for _ in range(100_000):
        chain.feed()
        for service, run, own in zip(services, runs, taken, strict=True):
            service.work()
            apply(run, own)
        if all(service.drained() for service in services):
            break
    first = [m.truth.gradients[0].result for m in made]
    assert sorted(own[1] for own in taken) == sorted(first)
    assert [len(own) for own in taken] == [ONE.steps] * 2
    flows = [claimed(run) for run in runs]
    assert flows[0] and flows[1] and not {*flows[0][0]} & {*flows[1][0]}
    with Ring.open(chain.run.ring(0), reader=1) as ring:
        assert ring.tail == ring.least_tail == ring.head
    for service in services:
        service.stop()
    chain.close()
    chain.run.remove()
