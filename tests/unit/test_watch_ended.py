"""What is told of a chain that has ended, off the files it left."""

from __future__ import annotations

from pathlib import Path

from flowcheck.config import (
    JobConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
)
from flowcheck.ops.running.chain import create
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.state import Word
from flowcheck.stages.bounded import append_line
from flowcheck.stages.chain.events import FRAMES, Event, Kind, line_of

CONFIG = JobConfig(
    source=(SourceConfig(file="capture.pcap"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    ring=RingConfig(slots=64, slot_bytes=256),
    staging=StagingConfig(size_bytes=1 << 20),
)


def test_what_a_chain_was_is_told_after_its_end_also_to_who_comes_later(tmp_path: Path) -> None:
    run, _ = create(CONFIG, tmp_path / "run")
    stayed = Reader(run.root, cached_s=0.0)
    stayed.state()
    for number, kind in enumerate((Kind.ARRIVED, Kind.APPLIED, Kind.LOSS, Kind.STOP)):
        told = Event(time_ns=10**18 + number, kind=kind, step=5, count=12, what=FRAMES)
        append_line(run.events, line_of(told, {}), 1 << 20)
    run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
    run.remove(keep_records=True)
    for reader in (stayed, Reader(run.root, cached_s=0.0)):
        state = reader.state()
        assert state.health.word is Word.STALE
        assert "has ended; its stages left at 2001-09-09 01:46:40 UTC" in state.health.reason
        assert [(job.step, job.digest) for job in state.jobs] == [(5, "d")]
        assert [(one.kind, one.count) for one in state.events] == [(Kind.LOSS, 12), (Kind.STOP, 12)]
        assert not state.problems and state.jobs[0].timeline[-1].step == 5
