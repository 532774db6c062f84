"""The tables of transitions: the README's diagrams are theirs, and one that no table has raises in
tests, is told live, and keeps no stage from its work."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.chain import torch_steps
from support.incarnations import floats
from support.lifecycle import change, follow
from support.lives import Both
from support.refused_as import refused_as
from support.staged import Chain
from test_base_command import first_life

from flowcheck.findings.catalog.run_directories import ILLEGAL_TRANSITION, LATER_VERSION
from flowcheck.findings.finding import Finding
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import Note
from flowcheck.stages.job_state import lifecycle_record_reader, lifecycle_writers
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, read_record
from flowcheck.stages.job_state.lifecycle_record_schema import (
    ANSWERS_KEPT,
    RECORD_VERSION,
    CheckpointRequest,
    ExtractPart,
    Incarnation,
    OfferedIncarnation,
    RequestKind,
    RequestPart,
    RestartVerdict,
    UpdatePart,
    read_part,
)
from flowcheck.stages.job_state.lifecycle_state_machines import (
    EXTRACT_TRANSITIONS,
    INCARNATION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    STRICT_VARIABLE,
    ExtractState,
    IllegalTransition,
    IncarnationState,
    ReplicaState,
)
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle, UpdateLifecycle
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step

README = Path(__file__).resolve().parents[2] / "flowcheck/stages/README.md"
DIAGRAM = re.compile(
    r"## ([^\n]+)\n(?:(?!\n## )[\s\S])*?```mermaid\nstateDiagram-v2\n([\s\S]*?)```"
)
EDGE = re.compile(r" {4}(\S+) --> (\S+?)(?:: (.+))?\n")
MACHINES: dict[str, tuple[type[StrEnum], Mapping[Any, Mapping[Any, str]], StrEnum]] = {
    "The extract stage": (ExtractState, EXTRACT_TRANSITIONS, ExtractState.STAGING),
    "The replica": (ReplicaState, REPLICA_TRANSITIONS, ReplicaState.ABSENT),
    "An incarnation of the job": (
        IncarnationState,
        INCARNATION_TRANSITIONS,
        IncarnationState.UNLEARNED,
    ),
}


def diagrams() -> dict[str, set[tuple[str, str, str]]]:
    """{heading: edges (from, to, why)} of the README; a begin and an end are `[*]`."""
    return {
        title: {(a.replace("_", " "), b.replace("_", " "), why) for a, b, why in EDGE.findall(text)}
        for title, text in DIAGRAM.findall(README.read_text())
    }


@pytest.mark.parametrize("title", MACHINES)
def test_the_diagram_is_the_table(title: str) -> None:
    states, table, first = MACHINES[title]
    wanted = {(str(a), str(b), why) for a, row in table.items() for b, why in row.items()}
    wanted |= {("[*]", str(first), "")}
    wanted |= {(str(state), "[*]", "") for state in states if not table[state]}
    assert diagrams()[title] == wanted


def test_every_diagram_is_of_a_table() -> None:
    assert diagrams().keys() == MACHINES.keys()
    assert README.read_text().count("```mermaid") == len(MACHINES)


@pytest.mark.parametrize("title", MACHINES)
def test_every_state_is_in_its_table_and_is_reached(title: str) -> None:
    states, table, first = MACHINES[title]
    assert set(table) == set(states)
    reached = {first}
    while more := {b for a in reached for b in table[a]} - reached:
        reached |= more
    assert reached == set(states)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    made.learned_folder.mkdir()
    return made


def test_an_illegal_one_raises_here_and_is_told_live_and_made(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Finding] = []
    extract = ExtractLifecycle(run, said.append, awaits_base=False)
    update = UpdateLifecycle(run, said.append)
    with pytest.raises(IllegalTransition, match="extraction went from 'staging' to 'turned"):
        extract.enter(ExtractState.TURNED_DOWN)
    with pytest.raises(IllegalTransition, match="incarnation 1 of the job went from 'followed'"):
        extract.enter(ExtractState.FOLLOWING)
        extract.enter(ExtractState.FOLLOWING, followed=Incarnation(step=None))
    update.enter(ReplicaState.APPLYING, 1)
    with pytest.raises(IllegalTransition, match="the replica went from 'applying' to 'catching"):
        update.enter(ReplicaState.CATCHING_UP, 1)
    assert (extract.state, update.part.state) == (ExtractState.FOLLOWING, ReplicaState.APPLYING)
    assert said == []
    monkeypatch.delenv(STRICT_VARIABLE)
    extract.enter(ExtractState.TURNED_DOWN)
    extract.enter(ExtractState.TURNED_DOWN, followed=Incarnation(step=None))
    update.enter(ReplicaState.CATCHING_UP, 1)
    record = read_record(run)
    assert record.extract.state is ExtractState.TURNED_DOWN
    assert record.extract.followed.step is None
    assert record.update.state is ReplicaState.CATCHING_UP
    assert [str(one).partition(",")[0] for one in said] == [
        "extraction went from 'following' to 'turned down'",
        "incarnation 1 of the job went from 'followed' to 'awaits base'",
        "the replica went from 'applying' to 'catching up'",
    ]
    assert all("mistake in FlowCheck" in one.remedy for one in said)


def test_stages_whose_tables_have_nothing_take_every_step_and_say_so(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such mistake costs a step."""
    life = first_life()
    write_pcap(tmp_path / "life.pcap", life.frames_of())
    monkeypatch.delenv(STRICT_VARIABLE)
    for name, states in (
        ("EXTRACT_TRANSITIONS", ExtractState),
        ("REPLICA_TRANSITIONS", ReplicaState),
        ("INCARNATION_TRANSITIONS", IncarnationState),
    ):
        monkeypatch.setattr(lifecycle_writers, name, {state: {} for state in states})
    both = Both(Chain(tmp_path, shm / "memory", [tmp_path / "life.pcap"], 256))
    try:
        both.drive()
        lines = [json.loads(line) for line in both.chain.run.steps.read_text().splitlines()]
        gradients = [floats(one) for one in life.truth.gradients]
        wanted = torch_steps(floats(life.truth.weights), gradients, "adamw", lr=1e-3)
        told = [line["parameters_sha256"] for line in lines]
        assert told == [hashlib.sha256(one.tobytes()).hexdigest() for one in wanted]
        found = [m.finding for m in both.chain.heard.of(Note)]
        notes = [str(one) for one in found if one.code == ILLEGAL_TRANSITION.code]
        assert [note.partition(",")[0] for note in notes] == [
            "extraction went from 'staging' to 'following'",
            "incarnation 1 of the job went from 'unlearned' to 'followed'",
            "the replica went from 'absent' to 'applying'",
            "extraction went from 'following' to 'ended'",
        ]
    finally:
        both.close()


@pytest.mark.parametrize("name", ["extract", "update", "request"])
def test_a_record_of_a_later_version_is_refused_and_of_this_one_with_more_in_it_is_read(
    run: RunDir, name: str
) -> None:
    path = run.learned_folder / f"{name}.json"
    request = CheckpointRequest(
        id="1", kind=RequestKind.BASE, file="f", step=Step(3), source="s.pt"
    )
    parts = {
        "extract": ExtractPart(),
        "update": UpdatePart(),
        "request": RequestPart(request=request),
    }
    part = parts[name]
    more = msgspec.to_builtins(part) | {"of a later one": 1}
    path.write_bytes(msgspec.json.encode(more))
    assert read_part(path, type(part)) == part
    path.write_bytes(msgspec.json.encode(more | {"version": RECORD_VERSION + 1}))
    with refused_as(LATER_VERSION, file=re.compile(rf"{name}\.json$")):
        read_part(path, type(part))


def test_a_reader_between_two_writes_sees_no_incarnation_that_is_not_followed_yet(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one is followed, and has its base, after the reader has seen one part."""
    follow(run, Incarnation(step=Step(0)))
    change(run, Incarnation(step=Step(0), anchored=Step(4)))
    read = lifecycle_record_reader.extract_part_of

    def meanwhile(of: RunDir) -> ExtractPart:
        follow(of, Incarnation(number=2, iterations=Iteration(5), step=None))
        change(of, Incarnation(number=2, iterations=Iteration(5), step=Step(7), base=Step(7)))
        return read(of)

    monkeypatch.setattr(lifecycle_record_reader, "extract_part_of", meanwhile)
    assert incarnation_of(run) == Incarnation(number=2, iterations=Iteration(5), step=None)
    monkeypatch.undo()
    assert incarnation_of(run).base == 7


class Protocol(RuleBasedStateMachine):
    """Both stages' hands on one record, in any order, each killed at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="flowcheck-test-")
        self.run = RunDir(Path(self.folder.name))
        self.run.learned_folder.mkdir()
        self.number, self.requests = 1, 0
        self.start_extract()
        self.start_update()

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule()
    def start_extract(self) -> None:
        self.extract = ExtractLifecycle(self.run, pytest.fail, awaits_base=False)

    @rule()
    def start_update(self) -> None:
        self.update = UpdateLifecycle(self.run, pytest.fail)

    @precondition(lambda self: self.extract.state is ExtractState.STAGING)
    @rule(joined=st.booleans())
    def learn(self, joined: bool) -> None:
        if joined:
            self.extract.await_base()
        self.extract.enter(ExtractState.FOLLOWING)

    @precondition(lambda self: self.extract.state is ExtractState.FOLLOWING)
    @rule()
    def offer(self) -> None:
        self.extract.enter(ExtractState.CLOSING)
        offered = OfferedIncarnation(number=self.number + 1, folder="x")
        self.extract.enter(ExtractState.HANDING_OVER, offered=offered)

    @precondition(lambda self: self.extract.state is ExtractState.HANDING_OVER)
    @rule()
    def obey(self) -> None:
        verdict = self.extract.verdict()
        if verdict is None:
            return
        if not verdict.followed:
            self.extract.enter(ExtractState.TURNED_DOWN)
            return
        self.number += 1
        began = Incarnation(number=self.number, iterations=verdict.iterations, step=verdict.step)
        self.extract.enter(ExtractState.FOLLOWING, followed=began, offered=None)

    @rule()
    def look(self) -> None:
        """As the updater does at every turn, of a job that is learned."""
        record = self.update.record()
        followed, verdict = record.incarnation, record.verdict
        if record.extract.state is ExtractState.STAGING:
            return
        state = ReplicaState.APPLYING
        if verdict is not None:
            state = ReplicaState.HANDED_OVER if verdict.followed else ReplicaState.STOPPED
        elif followed.step is None:
            state = ReplicaState.AWAITING_BASE
        self.update.enter(state, followed.number)

    @rule(step=st.none() | st.integers(0, 9), waits=st.booleans())
    def judge(self, step: Step | None, waits: bool) -> None:
        self.look()
        record = self.update.record()
        if record.extract.offered is None or record.verdict is not None:
            return
        self.update.write_verdict(RestartVerdict(number=self.number, step=step, waits=waits))

    @rule(at=st.integers(0, 9), killed=st.booleans())
    def take(self, at: Step, killed: bool) -> None:
        self.look()
        followed = self.update.record().incarnation
        if self.update.part.state not in (ReplicaState.APPLYING, ReplicaState.AWAITING_BASE):
            return
        kind = RequestKind.BASE if followed.step is None else RequestKind.ANCHOR
        self.requests += 1
        request = self.update.part.taking or CheckpointRequest(
            id=str(self.requests), kind=kind, file="f", step=at, source="s.pt"
        )
        assert self.update.take(request)
        if killed:
            self.start_update()
            return
        change = {"base": at, "step": at} if followed.step is None else {"anchored": at}
        now = msgspec.structs.replace(followed, **change)
        self.update.answer(request, at, incarnation=now)
        answer = read_record(self.run).update.answer(request.id)
        assert answer is not None and answer.at == at

    @invariant()
    def what_is_on_file_is_what_the_stages_know(self) -> None:
        record = read_record(self.run)
        assert record.incarnation.number == self.number
        assert record.extract == self.extract.part
        assert record.update == self.update.part or not self.run.update_record.exists()
        assert len(record.update.answers) <= ANSWERS_KEPT
        for number in range(1, self.number):
            assert record.state_of(number) is IncarnationState.OVER


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=60, deadline=None, stateful_step_count=30)
