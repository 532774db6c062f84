"""The state of a chain as one value: the data contract of `watch`, `top`, `status` and the page
(state.json).

state_reader.py makes it; metrics, health, the terminal view and the page are made of it and of
nothing else. Times end in `_ns` and are since 1970; None means: it did not happen, or is unknown.
Facts are findings: {"code", "arguments", "until_audit", "sentence"}.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flowcheck.findings.finding import Finding
from flowcheck.stages.chain_events.event_log import Event
from flowcheck.wire.algorithms.algorithm_names import Algorithm


class StateStruct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a state."""


class HealthWord(StrEnum):
    EXACT = "exact"
    """The replica has taken every whole step that came, and all of it is as the trainers'."""
    BEHIND = "behind"
    """It waits: for a job, for a base, or it has more than a little to take."""
    TAINTED = "tainted"
    """What it holds is not all of its step, or an audit says that it is not the trainers'."""
    STALE = "stale"
    """It does not get on, or nobody knows: no chain, no stage, a step was lost, nothing arrives."""


class Health(StateStruct, frozen=True, kw_only=True):
    word: HealthWord
    reason: Finding


class StepState(StateStruct, frozen=True, kw_only=True):
    """What became of one step; the marks of a timeline."""

    step: int
    arrived_ns: int | None = None
    """The last byte of it was placed."""
    applied_ns: int | None = None
    """The replica took it."""
    durable_ns: int | None = None
    """A checkpoint of it is whole at the target."""
    seconds: float | None = None
    """That taking it took."""
    lost: Finding | None = None
    """Why it cannot be rebuilt; None: it was not lost."""
    missing: int = 0
    """Packets of it that sequence numbers show and no mirror brought."""
    healed: int = 0
    """Of those, that came after all; with `lost`, 1: the replica goes on behind it."""
    tainted: bool = False
    """Taken without all of its bytes."""
    audited: bool | None = None
    """Whether an audit of it passed; None: there was none."""
    anchored: bool = False
    """The trainer's own file took its place."""
    logged: bool = False
    """It waits for a base, and is counted from 1 since the job was joined."""


class StageState(StateStruct, frozen=True, kw_only=True):
    """One process."""

    name: str
    """supervisor, capture-0, parse-0, extract, update, persist, serve."""
    job: int
    pid: int | None
    """None: it does not live."""
    started: bool
    """It was, at least once."""
    restarts: int
    gone_s: float | None
    """For how long it was seen not to live; None: it does, or was never started."""
    done: int | None = None
    """Frames, or steps, so far (`unit`); None: it counts nothing."""
    rate: float | None = None
    """Of those a second, over the last seconds; None: not known yet."""
    unit: str = ""
    """frames, steps or empty."""
    bytes_s: float | None = None
    """Capture: bytes off the wire a second."""


class RingState(StateStruct, frozen=True, kw_only=True):
    """The shared-memory ring of one queue of a mirror port."""

    number: int
    source: str
    """What frames come from, as the job file states it: eth1, 0000:3b:00.0, a file."""
    slots: int
    filled_slots: int
    """Captured and not yet given back by the slowest reader."""
    fill: float
    """Their part of all, 0 to 1."""
    huge_pages: bool
    head: int
    parsed: int
    tail: int
    captured_bytes: int
    """Off the wire."""
    frame_age_s: float | None
    """Since the last frame, to half a second; None: none came."""
    dark_s: float | None
    """For how long its interface has had no link; None: it has, or is no interface of the kernel's,
    of which nothing is known."""
    lost: dict[str, int]
    """Frames that reached this machine and no slot, by counter (LOSSES, packet_counters.py)."""
    verdicts: dict[str, int]
    """Frames by what they turned out to be; those with none left out."""
    parse: dict[str, int]
    """The parser's other counters."""
    extract: dict[str, int]
    """The first job's extractor's counters."""
    missing_packets: int
    """That flows' sequence numbers show and that port did not bring, now."""


class DiagramLink(StateStruct, frozen=True, kw_only=True):
    """A mirrored link of a ring of ranks, from a node to another, by their places in it."""

    sender: int
    receiver: int
    sources: tuple[str, ...]
    """Addresses."""
    destinations: tuple[str, ...]
    channels: tuple[int, ...]
    queue_pairs: tuple[int, ...]
    protocols: tuple[str, ...]
    rx: tuple[str, ...]
    """Switch ports that are stated to copy it as they receive it from the sender."""
    tx: tuple[str, ...]
    """And those that copy it as they send it to the receiver."""
    beside_ring: bool = msgspec.field(name="tree")
    """It is no link of the ring: only trees pass there. The key is of before `algorithm`."""
    algorithm: Algorithm = Algorithm.RING
    """Whose link it is: the ring's, or of one that alone passes there."""


class RingDiagram(StateStruct, frozen=True, kw_only=True):
    """One communicator of the learned job: what a drawing of it needs."""

    number: int
    ranks: int
    nodes: int
    """ranks // gpus: so many places the ring has."""
    gpus: int
    """Ranks of a node."""
    channels: int
    ring: bool
    """False: point-to-point connections, whose ends are not numbered."""
    hosts: tuple[str, ...]
    """[nodes] addresses; empty: no mirrored link ends there."""
    links: tuple[DiagramLink, ...]
    """All links that are mirrored; those between other nodes are not."""
    chunk_links: tuple[int, ...]
    """[chunk] on how many mirrored links its sum passes; -1: it has no byte; (): not known."""
    summary: tuple[str, ...]
    """Sentences, as `flowcheck analyze` prints them."""


class DurableCheckpoint(StateStruct, frozen=True, kw_only=True):
    """Checkpoints that are written while the chain runs."""

    target: str
    step: int | None
    """Of the newest that is whole there."""
    name: str
    time_ns: int | None
    age_s: float | None
    count: int
    """Saved since the chain began."""
    phase: str
    """writing, sending, verifying; empty: nothing is under way."""
    phase_step: int | None
    done_share: float | None
    """Of what is under way, 0 to 1; None: not known."""
    error: Finding | None
    """Of the last attempt; None: it did not fail."""
    attempts: int
    """That failed since one did not."""


class EndKind(StrEnum):
    ASKED = "asked"
    """By who may: `flowcheck down`, Ctrl-C, a signal."""
    DRAINED = "drained"
    """Its sources ended, and all of them is taken: a replay."""
    FAILED = "failed"
    """It gave up."""
    KILLED = "killed"


class JobEnd(StateStruct, frozen=True, kw_only=True):
    """Of one job's replica, at the end."""

    step: int
    """0: none was taken."""
    why: Finding | None = None
    """What kept it from following to the end; None: it did."""
    in_flight: int | None = None
    """A step that was not whole then; no loss."""
    checkpoint: str | None = None
    """Where it was written; None: it was not."""


class ChainEnd(StateStruct, frozen=True, kw_only=True):
    """Of a chain."""

    how: EndKind
    by: Finding
    """Who asked, why it failed, who found it killed."""
    time_ns: int
    """Since 1970; of a chain that was killed its last sign of life."""
    jobs: tuple[JobEnd, ...] = ()
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    """Times each stage was started again; of further jobs "NAME (job 2)"."""
    rings: tuple[RingState, ...] = ()
    """As they were then: what was captured, and what was lost."""

    @property
    def in_order(self) -> bool:
        """Somebody wanted it to end, or it had nothing left."""
        return self.how in (EndKind.ASKED, EndKind.DRAINED)


TIMELINE_STEPS = 120
"""Steps a job's timeline holds, the newest ones. A choice: more make each state longer."""
ANCHORS_MAX = 3
"""Trainer's files that a job tells of, the newest ones. A choice of layout; anchors.jsonl has
all."""


class TrafficArrival(StateStruct, frozen=True, kw_only=True):
    """When something of a job last came, as its supervisor counts it every half second."""

    age_s: float
    """Since the last packet of it."""
    limit_s: float
    """For longer nothing may come: ten of its median steps, 30 s at least."""
    step_s: float | None
    """Its median step; None: fewer than two were whole."""
    newest_step: int | None
    """That a packet came of, told while packets of a step that is not taken are missing."""
    unplaced_s: float
    """For how long packets came that no plan has, since the last one that a plan does."""

    @property
    def silent(self) -> bool:
        return self.age_s > self.limit_s


class AnchorFile(StateStruct, frozen=True, kw_only=True):
    """A file of the trainer's that took the place of a step of the replica's."""

    step: int
    file: str
    at: int
    """The replica's step then."""


class JobState(StateStruct, frozen=True, kw_only=True):
    """One job that is followed; or is to be, as soon as it is learned."""

    number: int
    name: str
    run: str
    health: Health
    learned: bool
    why_not: tuple[Finding, ...]
    """Why it is not learned yet."""
    follows: str | None
    """gradients or parameters; None: not learned."""
    life: int
    """Of the job: 2 once it came back."""
    step: int | None
    """The last one the replica took."""
    last_step: int | None
    """That it has, as is stated: behind it nothing need arrive."""
    digest: str
    step_ns: int | None
    """When it was taken."""
    arrived_step: int | None
    """The last one that is whole; while steps are `logged`, counted as they are."""
    lag_steps: int
    """Whole steps that the replica has not taken yet, those that are logged among them."""
    lag_ms: float
    """Since the first of those was whole; of none: from whole to taken, of the last step."""
    arrival: TrafficArrival | None
    """None: no job is learned, or the sources have ended."""
    step_rate: float | None
    """Steps a second that the replica took, over the last ones; 0 once none has come for long;
    None: fewer than two."""
    update_seconds: float | None
    """That taking the last step took."""
    gradient_bytes: int | None
    under_way: float | None
    """Part of the bytes of the step under way that is placed, 0 to 1."""
    lost_step: int | None
    """The step the replica waits before, as it cannot be rebuilt; None: it waits for none."""
    lost_why: Finding | None
    steps_lost: int
    """Since the chain began."""
    awaits_base: bool
    """The job began with a state that nobody knows."""
    logged: tuple[int, int] | None
    """Steps that are kept meanwhile, counted from 1 since the job was joined midstream; (1, 0):
    none yet; None: it was not."""
    tainted: tuple[Finding, ...]
    """What of it is not of its step; () where all is."""
    assumed: tuple[Finding, ...]
    """What it rests on that nothing seen could have contradicted."""
    addresses: tuple[str, ...]
    """Of the ports its connections were seen at."""
    audited_step: int | None
    audit_passed: bool | None
    """Of the last audit; None: never audited."""
    audit_differs: str
    """The first tensor that differed then."""
    anchors: tuple[AnchorFile, ...]
    """The newest ANCHORS, ascending."""
    anchors_before: int
    """How many more there were."""
    durable: DurableCheckpoint | None
    """None: the job file states no [persist], and nothing was written as the chain ended."""
    kept_at: str | None
    """The folder its replica is written to when the chain stops."""
    served: str | None
    """The URL its steps are served at."""
    timeline: tuple[StepState, ...]
    """Ascending in time, the newest TIMELINE_STEPS."""
    diagram: tuple[RingDiagram, ...]
    """() until it is learned."""


VERSION = 2
"""2: facts are findings, no sentences."""
EVENTS_MAX = 60
"""Events a state holds, the newest ones, those of every step (arrived, applied) left out. A choice
of layout; events.jsonl has all."""


class ChainState(StateStruct, frozen=True, kw_only=True):
    """A chain at one instant."""

    version: int = VERSION
    run: str
    time_ns: int
    """When it was read."""
    health: Health
    """Of the chain: that of the job that is worst."""
    started_ns: int | None
    beat_age_s: float | None
    """Since the supervisor's heart last beat; None: it never did."""
    ending: bool
    """It was told to end."""
    in_order: bool
    """It ends, or has ended, as somebody asked for that or its sources ended: nothing failed."""
    ended: ChainEnd | None
    """Why it is no more; None: it runs, or nobody has said so yet."""
    watched: str | None
    """Where its own watcher listens; None: it was not asked for."""
    stages: tuple[StageState, ...]
    rings: tuple[RingState, ...]
    """Of a chain that has ended as they were then."""
    jobs: tuple[JobState, ...]
    event_counts: dict[str, int]
    """By kind, since the chain began, of all jobs."""
    packets_came_late: int
    """Were missing at a look, and there at a later one."""
    events: tuple[Event, ...]
    """The newest EVENTS, ascending."""
    problems: tuple[Finding, ...]
    """Readers that failed just now: what they read is left out; and records that have no room."""
    unwritten_lines: int = 0
    """Of records, that found no room since the chain began, of all jobs."""


def encode_state(state: ChainState) -> bytes:
    return msgspec.json.encode(state)


def decode_state(text: bytes) -> ChainState:
    """Raises msgspec.ValidationError for anything else, also for a state of another version."""
    return msgspec.json.decode(text, type=ChainState)
