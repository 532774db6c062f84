"""Records of a run that an earlier version wrote hold sentences, and are read as findings."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE
from flowcheck.findings.catalog.lost_steps import COPIES_DIFFER, FIRST_MISSING_RANGES
from flowcheck.messages import Fault, JobLearned, Message, Note, ShardReady, StepLost, StepSaved
from flowcheck.stages.chain_events.event_log import (
    Event,
    EventKind,
    event_of,
    line_of,
    message_fields,
    read_event,
)
from flowcheck.stages.chain_events.heartbeat import Heartbeat, read_beat, write_beat
from flowcheck.stages.extraction.plan_deviation_resolver import SkipDecision, read_decisions
from flowcheck.stages.job_state.anchor_log import AnchorRecord, parse_anchor_record
from flowcheck.stages.job_state.assumptions import add_assumption, assumptions_of
from flowcheck.stages.job_state.earlier_run_directories import parse_verdict
from flowcheck.stages.job_state.lifecycle_record_schema import RestartVerdict
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step

WHY = COPIES_DIFFER(8)
EARLIER = EARLIER_SENTENCE("it rained")
MESSAGES: tuple[Message, ...] = (
    StepLost(step=4, missing=((0, 8),), why=FIRST_MISSING_RANGES(reason=WHY, named=1, ranges=2)),
    StepSaved(step=3, name="step-3", bytes=9, seconds=0.5, time_ns=7),
    JobLearned(path="/run/x/job.json"),
    Note(stage="extract", finding=WHY),
    Fault(stage="update", finding=WHY.until_audited()),
)
KINDS = {StepLost: "loss", StepSaved: "save", JobLearned: "learned", Note: "note", Fault: "fault"}
EARLIER_LINES: dict[str, Event] = {
    '{"time":1.5,"type":"Note","stage":"a","sentence":"it rained"}': Event(
        kind=EventKind.NOTE, stage="a", time_ns=1_500_000_000, why=EARLIER
    ),
    '{"time":2,"event":"restart","stage":"a","why":"it rained"}': Event(
        kind=EventKind.RESTART, stage="a", time_ns=2_000_000_000, why=EARLIER
    ),
    '{"time_ns":7,"kind":"loss","step":4,"what":"step","count":1,"why":"it rained"}': Event(
        kind=EventKind.LOSS, time_ns=7, step=4, what="step", count=1, why=EARLIER
    ),
    '{"time_ns":7,"kind":"save","step":3,"why":"step-3"}': Event(
        kind=EventKind.SAVE, time_ns=7, step=3, name="step-3"
    ),
    '{"time_ns":7,"kind":"learned","why":"/job.json"}': Event(
        kind=EventKind.LEARNED, time_ns=7, path="/job.json"
    ),
    '{"time_ns":7,"kind":"audit","step":3,"passed":true,"why":"/3.pt"}': Event(
        kind=EventKind.AUDIT, time_ns=7, step=3, passed=True, path="/3.pt"
    ),
    '{"time_ns":7,"kind":"anchor","step":3,"passed":false,"why":"it rained"}': Event(
        kind=EventKind.ANCHOR, time_ns=7, step=3, passed=False, why=EARLIER
    ),
    '{"time_ns":7,"kind":"drained","why":""}': Event(kind=EventKind.DRAINED, time_ns=7),
}


@pytest.mark.parametrize("line", EARLIER_LINES)
def test_a_line_of_an_earlier_version_is_read(line: str) -> None:
    assert read_event(line.encode()) == EARLIER_LINES[line]


@pytest.mark.parametrize(
    "line",
    ['{"kind":"later"}', '{"kind":"loss","why":7}', '{"kind":"loss","why":{}}', "[]", '"why"', "{"],
)
def test_a_line_that_says_nothing_here_is_left_out(line: str) -> None:
    assert read_event(line.encode()) is None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_event_comes_back_with_its_finding_and_the_sentence_beside_it(message: Message) -> None:
    event = event_of(message, job=2, now_ns=5)
    line = line_of(event, message_fields(message))
    assert read_event(line) == event
    fields = json.loads(line)
    assert fields["kind"] == KINDS[type(message)]
    assert not {"type", "event"} & set(fields), "one key says what a line is"
    if event.why is not None:
        assert fields["why"]["sentence"] == str(event.why) == event.detail
    if isinstance(message, Note | Fault):
        assert fields["sentence"] == str(message.finding)


def test_a_message_that_has_no_kind_of_its_own_is_named_in_its_line() -> None:
    message = ShardReady(iteration=Iteration(3), generation=1)
    fields = json.loads(line_of(event_of(message, job=1, now_ns=5), message_fields(message)))
    assert (fields["kind"], fields["what"], fields["iteration"]) == ("other", "ShardReady", 3)


def test_a_line_of_the_release_before_is_read_with_its_three_names() -> None:
    lost = b'{"time":1.5,"type":"StepLost","kind":"loss","time_ns":7,"step":4,"count":1}'
    again = b'{"time":1.5,"event":"restart","kind":"restart","time_ns":7,"stage":"a"}'
    assert read_event(lost) == Event(kind=EventKind.LOSS, time_ns=7, step=Step(4), count=1)
    assert read_event(again) == Event(kind=EventKind.RESTART, time_ns=7, stage="a")


def test_a_beat_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "beat.json"
    write_beat(file, Heartbeat(pid=4, started_ns=5, beat_ns=6, full=(WHY,)))
    assert read_beat(file) == Heartbeat(pid=4, started_ns=5, beat_ns=6, full=(WHY,))
    file.write_text('{"pid":4,"started_ns":5,"beat_ns":6,"full":["it rained"]}')
    assert read_beat(file) == Heartbeat(pid=4, started_ns=5, beat_ns=6, full=(EARLIER,))
    for wrong in ('{"pid":4}', '["full"]', '{"pid":"4","started_ns":5,"beat_ns":6,"full":[]}'):
        file.write_text(wrong)
        assert read_beat(file) is None


def test_anchors_and_verdicts_of_an_earlier_version_are_read() -> None:
    anchor = AnchorRecord(step=3, file="/3.pt", request="r", at=6, refused=WHY)
    assert parse_anchor_record(msgspec.json.encode(anchor)) == anchor
    earlier = msgspec.to_builtins(anchor) | {"refused": "it rained"}
    assert parse_anchor_record(json.dumps(earlier).encode()).refused == EARLIER
    verdict = RestartVerdict(number=1, step=None, why=WHY, waits=True)
    written = msgspec.to_builtins(verdict)
    for sentence, found in (("it rained", EARLIER), ("", None)):
        text = json.dumps(written | {"why": sentence}).encode()
        assert parse_verdict(text) == msgspec.structs.replace(verdict, why=found)
    with pytest.raises(msgspec.ValidationError):
        parse_verdict(b'{"number":"one","why":"it rained"}')


@pytest.mark.parametrize(("sentence", "found"), [("it rained", EARLIER), ("", None)])
def test_decisions_of_an_earlier_version_are_read(
    sentence: str, found: object, tmp_path: Path
) -> None:
    file = tmp_path / "recuts"
    made = SkipDecision(1, 4, (7, 8), (((1, 2, 3),), ()), WHY)
    file.write_bytes(msgspec.msgpack.encode([made]))
    assert read_decisions(file) == [made]
    told = msgspec.structs.replace(made, left_out=(3, 4))
    file.write_bytes(msgspec.msgpack.encode([told]))
    assert read_decisions(file) == [told]
    file.write_bytes(msgspec.msgpack.encode([msgspec.to_builtins(made) | {"assumed": sentence}]))
    assert read_decisions(file) == [msgspec.structs.replace(made, assumed=found)]


def test_assumptions_of_an_earlier_version_are_kept_beside_new_ones(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    run.assumed.write_text('["it rained (no audit has shown it yet)"]')
    assert not add_assumption(run, EARLIER.until_audited()), "it is there already"
    assert add_assumption(run, WHY) and not add_assumption(run, WHY)
    assert add_assumption(run, WHY.until_audited()), "of what an audit shows, another"
    written = json.loads(run.assumed.read_text())
    assert written[0]["sentence"] == "it rained (no audit has shown it yet)"
    assert len(written) == 3
    assert assumptions_of(run) == (), "no job is learned"
