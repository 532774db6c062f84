"""What a chain's history says of packets, by frames that were parsed and placed by a real plan."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.extraction import SIMPLE, bench, packets_of, plan_of
from support.lifecycle import follow
from test_step_loss_packets import FIRST, SIZES, iteration_of, sends
from test_watch_reading import CONFIG

from flowcheck.messages import AuditRecord, StepApplied, StepArrived
from flowcheck.ops.watch.state.step_history import StepHistory
from flowcheck.stages.chain_events.event_log import PACKETS, EventKind
from flowcheck.stages.chain_events.event_recorder import EventRecorder
from flowcheck.stages.chain_events.lost_packets import LostPackets
from flowcheck.stages.job_state.anchor_log import (
    AnchorRecord,
    anchor_record_of,
    read_anchor_records,
)
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.run_dir import RunDir

PACKETS_OF_ALL = packets_of(sends(SIMPLE))


def test_packets_of_a_step_are_known_missing_before_it_is_given_up_and_healed_once_it_is_taken(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those are that came doubtful, and carried nothing that was not there."""
    run = RunDir.create(tmp_path / "run", shm)
    lacking = [n for n, one in enumerate(PACKETS_OF_ALL) if iteration_of(one) == 4][2:4]
    newest = iteration_of(PACKETS_OF_ALL[60])
    assert newest > 5
    with bench(shm) as one:
        recorder = EventRecorder(run, CONFIG)
        monkeypatch.setattr(recorder._lacking, "_losses", LostPackets([one.flows], [one.staging]))
        one.run(PACKETS_OF_ALL[:8])
        own = sends(SIMPLE)
        assert one.extractor.install_plan(
            plan_of(own[:FIRST], each=own[FIRST : FIRST + len(SIZES)])
        )
        one.run(p for n, p in enumerate(PACKETS_OF_ALL[8:61], 8) if n not in lacking)
        history = StepHistory(run.events)
        for step in (1, 2, 3):
            recorder.on_message(StepApplied(step=step, seconds=0.1, digest="d"))
        for _ in range(2):
            recorder._lacking.check(1)
        history.update()
        told = {step.step: (step.missing, step.healed) for step in history.timeline}
        assert told[4] == (2, 0) and recorder._lacking.newest == newest
        recorder.on_message(StepApplied(step=4, seconds=0.1, digest="d"))
        recorder._lacking.check(1)
        history.update()
        told = {step.step: (step.missing, step.healed) for step in history.timeline}
        assert told[4] == (2, 2) and recorder._lacking.newest is None
        kinds = [event.kind for event in history.recent if event.what == PACKETS]
        assert kinds == [EventKind.LOSS, EventKind.HEAL]
    run.remove()


def test_a_later_life_that_takes_its_steps_at_once_keeps_them(tmp_path: Path, shm: Path) -> None:
    """Its steps wait until it is learned, and are whole and taken before the next look at files."""
    run = RunDir.create(tmp_path / "run", shm)
    recorder, history = EventRecorder(run, CONFIG), StepHistory(run.events)
    for step in (1, 2, 3):
        recorder.on_message(StepArrived(step=step, time_ns=step))
        recorder.on_message(StepApplied(step=step, seconds=0.1, digest="d"))
    later = Incarnation(number=2, iterations=3, step=2)
    follow(run, later)
    for step in (3, 4):
        recorder.on_message(StepArrived(step=step, time_ns=10 + step))
        recorder.on_message(StepApplied(step=step, seconds=0.1, digest="e"))
    recorder.poll([])
    history.update()
    assert [(one.step, one.arrived_ns) for one in history.timeline] == [
        (1, 1),
        (2, 2),
        (3, 13),
        (4, 14),
    ]
    assert [event.kind for event in history.recent].count(EventKind.HANDOVER) == 1
    run.remove()


def test_a_torn_line_costs_itself_alone(tmp_path: Path, shm: Path) -> None:
    """Of what the trainer's files came to, and of audits: what is whole is told, once."""
    run = RunDir.create(tmp_path / "run", shm)
    recorder, history = EventRecorder(run, CONFIG), StepHistory(run.events)
    anchors = [AnchorRecord(step=n, file="/runs/{a}/3.pt", request=str(n), at=6) for n in range(3)]
    lines = [msgspec.json.encode(one) for one in anchors]
    run.anchors.write_bytes(lines[0][: lines[0].index(b"}") + 1])
    assert read_anchor_records(run) == [] and anchor_record_of(run, "0") is None
    for line in lines:
        append_line(run.anchors, line, 1 << 20)
    audit = msgspec.json.encode(AuditRecord(step=5, passed=True, file="/{}", tensors=1))
    run.audits.write_bytes(audit[:-9] + b"\n" + audit + b"\n")
    for _ in range(2):
        recorder.poll([])
    history.update()
    assert read_anchor_records(run) == anchors
    told = [(event.kind, event.step) for event in history.recent]
    assert told == [(EventKind.AUDIT, 5), *((EventKind.ANCHOR, n) for n in range(3))]
    run.remove()
