"""The state of a chain as one value: the data contract of `watch`, `top`, `status` and the page
(state.json).

state_reader.py makes it; metrics, health, the terminal view and the page use nothing else. Names of
times end in `_ns`: nanoseconds since 1970. None means that it did not happen, or is unknown. Facts
are findings: {"code", "arguments", "until_audit", "sentence"}.
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
    """The replica has applied every complete step, and all of it equals the trainers' state."""
    BEHIND = "behind"
    """It waits for a job or for a base, or has more than a little to apply."""
    TAINTED = "tainted"
    """A part of it is of an earlier step, or an audit found that it differs from the trainers'
    state."""
    STALE = "stale"
    """It makes no progress, or that is unknown: no chain, no stage, a lost step, no traffic."""


class Health(StateStruct, frozen=True, kw_only=True):
    word: HealthWord
    reason: Finding


class StepState(StateStruct, frozen=True, kw_only=True):
    """What became of one step; the marks of a timeline."""

    step: int
    arrived_ns: int | None = None
    """When its last byte was placed."""
    applied_ns: int | None = None
    """When the replica applied it."""
    durable_ns: int | None = None
    """When a checkpoint of it was complete at the target."""
    seconds: float | None = None
    """Seconds that applying it took."""
    lost: Finding | None = None
    """Why it cannot be rebuilt; None: it was not lost."""
    missing: int = 0
    """Packets of it that sequence numbers show and no mirror brought."""
    healed: int = 0
    """Missing packets that arrived after all; with `lost`, 1: the replica went on after it."""
    tainted: bool = False
    """It was applied without all of its bytes."""
    audited: bool | None = None
    """Whether an audit of it passed; None: there was none."""
    anchored: bool = False
    """A trainer checkpoint replaced it."""
    logged: bool = False
    """It waits for a base; its number counts from 1 since the job was joined."""


class StageState(StateStruct, frozen=True, kw_only=True):
    """One process."""

    name: str
    """supervisor, capture-0, parse-0, extract, update, persist, serve."""
    job: int
    pid: int | None
    """None: the process is not alive."""
    started: bool
    """It was started at least once."""
    restarts: int
    gone_s: float | None
    """Seconds since it was first seen dead; None: it is alive, or was never started."""
    done: int | None = None
    """Frames, or steps, so far (`unit`); None: it counts nothing."""
    rate: float | None = None
    """Frames or steps per second, over the last seconds; None: not known yet."""
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
    """Slots that are captured and not yet released by the slowest reader."""
    fill: float
    """Their share of all slots, 0 to 1."""
    huge_pages: bool
    head: int
    parsed: int
    tail: int
    captured_bytes: int
    """Bytes off the wire."""
    frame_age_s: float | None
    """Seconds since the last frame, to half a second; None: no frame came."""
    dark_s: float | None
    """Seconds for which its interface has had no link; None: it has one, or the kernel has no
    interface for it."""
    lost: dict[str, int]
    """Frames that reached this machine and found no slot, by counter (LOSSES,
    packet_counters.py)."""
    verdicts: dict[str, int]
    """Frames by what the parser found them to be; zeros are left out."""
    parse: dict[str, int]
    """The parser's other counters."""
    extract: dict[str, int]
    """The first job's extractor's counters."""
    missing_packets: int
    """Packets that flows' sequence numbers show and that port did not bring, at present."""


class DiagramLink(StateStruct, frozen=True, kw_only=True):
    """A mirrored link of a ring of ranks, from one node to another; nodes are named by their place
    in the ring."""

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
    off_ring: bool = msgspec.field(name="tree")
    """It is no link of the ring: only other algorithms' traffic passes there. The JSON key is older
    than `algorithm`."""
    algorithm: Algorithm = Algorithm.RING
    """The algorithm whose link it is: the ring's, or the only one that uses this link."""


class RingDiagram(StateStruct, frozen=True, kw_only=True):
    """One communicator of the learned job: what a drawing of it needs."""

    number: int
    ranks: int
    nodes: int
    """Number of nodes: ranks // gpus."""
    gpus: int
    """Ranks per node."""
    channels: int
    ring: bool
    """False: point-to-point connections, whose ends are not numbered."""
    hosts: tuple[str, ...]
    """[nodes] addresses; empty: no mirrored link ends there."""
    links: tuple[DiagramLink, ...]
    """All links that are mirrored; those between other nodes are not."""
    chunk_links: tuple[int, ...]
    """[chunk] number of mirrored links that carry its sum; -1: the chunk has no byte; ():
    unknown."""
    summary: tuple[str, ...]
    """Sentences, as `flowcheck analyze` prints them."""


class DurableCheckpoint(StateStruct, frozen=True, kw_only=True):
    """Checkpoints that are written while the chain runs."""

    target: str
    step: int | None
    """Step of the newest complete checkpoint there."""
    name: str
    time_ns: int | None
    age_s: float | None
    count: int
    """Number of checkpoints saved since the chain began."""
    phase: str
    """writing, sending, verifying; empty: no save is under way."""
    phase_step: int | None
    done_share: float | None
    """Share of the current phase that is done, 0 to 1; None: unknown."""
    error: Finding | None
    """Why the last attempt failed; None: it did not."""
    attempts: int
    """Failed attempts since the last success."""


class EndKind(StrEnum):
    ASKED = "asked"
    """Somebody stopped it: `flowcheck down`, Ctrl-C, a signal."""
    DRAINED = "drained"
    """Its sources ended, and everything from them was applied: a replay."""
    FAILED = "failed"
    """It gave up."""
    KILLED = "killed"


class JobEnd(StateStruct, frozen=True, kw_only=True):
    """The result of one job's replica, when the chain ended."""

    step: int
    """The last applied step; 0: none was."""
    why: Finding | None = None
    """Why it did not follow to the end; None: it did."""
    in_flight: int | None = None
    """A step that was not complete then; this is no loss."""
    checkpoint: str | None = None
    """Where it was written; None: it was not."""


class ChainEnd(StateStruct, frozen=True, kw_only=True):
    """How a chain ended."""

    how: EndKind
    by: Finding
    """Who stopped it, why it failed, or who found it killed."""
    time_ns: int
    """When it ended; for a killed chain, its last heartbeat or event."""
    jobs: tuple[JobEnd, ...] = ()
    restarts: dict[str, int] = msgspec.field(default_factory=dict)
    """{stage: number of restarts}; stages of further jobs are named "NAME (job 2)"."""
    rings: tuple[RingState, ...] = ()
    """The rings at the end: what was captured, and what was lost."""

    @property
    def in_order(self) -> bool:
        """Whether somebody stopped it, or its sources ended."""
        return self.how in (EndKind.ASKED, EndKind.DRAINED)


TIMELINE_STEPS = 120
"""Steps a job's timeline holds, the newest ones. A choice: more make each state longer."""
ANCHORS_MAX = 3
"""Trainer's files that a job tells of, the newest ones. A choice of layout; anchors.jsonl has
all."""


class TrafficArrival(StateStruct, frozen=True, kw_only=True):
    """When traffic of a job last arrived, as its supervisor measures it every half second."""

    age_s: float
    """Seconds since its last packet."""
    limit_s: float
    """Seconds after which the job counts as silent: ten of its median steps, at least 30 s."""
    step_s: float | None
    """Median step time in seconds; None: fewer than two steps were complete."""
    newest_step: int | None
    """The newest step that a packet arrived for; only set while packets of an unapplied step are
    missing."""
    unplaced_s: float
    """Seconds for which only packets without a plan arrived, since the last one with a plan."""

    @property
    def silent(self) -> bool:
        return self.age_s > self.limit_s


class AnchorFile(StateStruct, frozen=True, kw_only=True):
    """A trainer checkpoint that replaced a step of the replica."""

    step: int
    file: str
    at: int
    """The replica's step when it was taken."""


class JobState(StateStruct, frozen=True, kw_only=True):
    """One job that is followed, or will be once it is learned."""

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
    """Number of the job's incarnation, from 1."""
    step: int | None
    """The last step that the replica applied."""
    last_step: int | None
    """The job's last step, where it is stated: after it no traffic is expected."""
    digest: str
    step_ns: int | None
    """When that step was applied."""
    arrived_step: int | None
    """The last complete step; while steps are `logged`, counted as they are."""
    lag_steps: int
    """Complete steps that the replica has not applied yet, logged ones included."""
    lag_ms: float
    """Milliseconds since the first of those was complete. Where no step waits: from complete to
    applied, for the last step."""
    arrival: TrafficArrival | None
    """None: no job is learned, or the sources have ended."""
    step_rate: float | None
    """Steps per second that the replica applied lately; 0 once none came for long; None: fewer than
    two."""
    update_seconds: float | None
    """Seconds that applying the last step took."""
    gradient_bytes: int | None
    under_way: float | None
    """Share of the next step's bytes that is placed, 0 to 1."""
    lost_step: int | None
    """The step the replica waits before, as it cannot be rebuilt; None: it waits for none."""
    lost_why: Finding | None
    steps_lost: int
    """Since the chain began."""
    awaits_base: bool
    """The job began with an unknown state."""
    logged: tuple[int, int] | None
    """First and last logged step, counted from 1 since the job was joined midstream; (1, 0): none
    yet; None: it was not joined midstream."""
    tainted: tuple[Finding, ...]
    """Which parts are of an earlier step; () where none is."""
    assumed: tuple[Finding, ...]
    """Assumptions that it rests on: facts that no observation could have contradicted."""
    addresses: tuple[str, ...]
    """Addresses of its connections' ends."""
    audited_step: int | None
    audit_passed: bool | None
    """Result of the last audit; None: it was never audited."""
    audit_differs: str
    """The first tensor that differed in it."""
    anchors: tuple[AnchorFile, ...]
    """The newest ANCHORS_MAX, ascending."""
    anchors_before: int
    """Number of earlier ones."""
    durable: DurableCheckpoint | None
    """None: the job file states no [persist], and nothing was written as the chain ended."""
    kept_at: str | None
    """The folder to which its replica is written when the chain stops."""
    served: str | None
    """The URL at which its steps are served."""
    timeline: tuple[StepState, ...]
    """Ascending in time, the newest TIMELINE_STEPS."""
    diagram: tuple[RingDiagram, ...]
    """() until it is learned."""


VERSION = 2
"""Version of the state. Since 2, facts are findings instead of sentences."""
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
    """The chain's health: that of its worst job."""
    started_ns: int | None
    beat_age_s: float | None
    """Seconds since the supervisor's last heartbeat; None: there never was one."""
    ending: bool
    """It was asked to end."""
    in_order: bool
    """It ends, or has ended, because somebody asked for it or its sources ended: nothing failed."""
    ended: ChainEnd | None
    """Why it ended; None: it runs, or no record says so yet."""
    watched: str | None
    """The address of its own watch server; None: it has none, or none that is known here."""
    watch_port_in_log: bool = False
    """It has one, at a port that the kernel chose: its log names it."""
    stages: tuple[StageState, ...]
    rings: tuple[RingState, ...]
    """For a chain that has ended, as they were at the end."""
    jobs: tuple[JobState, ...]
    event_counts: dict[str, int]
    """{kind: number of events} since the chain began, of all jobs."""
    packets_came_late: int
    """Packets that were missing at one look and there at a later one."""
    events: tuple[Event, ...]
    """The newest EVENTS_MAX, ascending."""
    problems: tuple[Finding, ...]
    """Parts that could not be read just now, and are left out; and record files that have no
    room."""
    unwritten_lines: int = 0
    """Lines of records that found no room since the chain began, of all jobs."""


def encode_state(state: ChainState) -> bytes:
    return msgspec.json.encode(state)


def decode_state(text: bytes) -> ChainState:
    """Decodes state.json. Raises msgspec.ValidationError for anything else, also for a state of
    another version."""
    return msgspec.json.decode(text, type=ChainState)
