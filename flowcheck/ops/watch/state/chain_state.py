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
from flowcheck.replica.model_taint import ModelTaint
from flowcheck.replica.step_journal.journal_figures import JournalFigures
from flowcheck.stages.chain_events.event_log import Event
from flowcheck.stages.replica_copies.copy_records import CopiesRecord, CopyRecord
from flowcheck.step_numbers import Step
from flowcheck.wire.algorithms.algorithm_names import Algorithm


class StateStruct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a state."""


class HealthWord(StrEnum):
    """Health of a chain or a job, from best to worst."""

    EXACT = "exact"
    """The replica has applied every complete step, and all of it equals the trainers' state."""
    BEHIND = "behind"
    """The replica waits for a job or for a base, or has more steps to apply than usual."""
    TAINTED = "tainted"
    """Some elements of the replica are of an earlier step, or an audit found a difference from the
    trainers' state."""
    STALE = "stale"
    """The replica makes no progress, or its progress is unknown: no chain, no stage, a lost step,
    no traffic."""
    ENDED = "ended"
    """The chain ended as it was meant to: a user stopped it, or its captures were read to their
    end."""


class Health(StateStruct, frozen=True, kw_only=True):
    """Health of a chain or a job, and the reason."""

    word: HealthWord
    reason: Finding


class StepState(StateStruct, frozen=True, kw_only=True):
    """What happened to one step: an entry of the timeline."""

    step: Step
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
    """Packets of the step that sequence numbers show and no mirror port delivered."""
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
    """Frames or steps so far (`unit`); None: the process counts nothing."""
    rate: float | None = None
    """Frames or steps per second, over the last seconds; None: not known yet."""
    unit: str = ""
    """frames, steps or empty."""
    bytes_s: float | None = None
    """Captured bytes per second; None: not a capture process."""


class RingState(StateStruct, frozen=True, kw_only=True):
    """The shared-memory ring of one queue of a mirror port."""

    number: int
    source: str
    """Where frames come from, as the job file states it: eth1, 0000:3b:00.0, a file."""
    slots: int
    filled_slots: int
    """Slots that are captured and that the slowest reader has not released yet."""
    fill: float
    """Share of all slots that is filled, 0 to 1."""
    huge_pages: bool
    head: int
    parsed: int
    tail: int
    captured_bytes: int
    """Bytes of the captured frames."""
    frame_age_s: float | None
    """Seconds since the last frame, to half a second; None: no frame came."""
    dark_s: float | None
    """Seconds for which the interface has had no link; None: it has a link, or the kernel does not
    know the interface."""
    lost: dict[str, int]
    """Frames that reached this machine and found no slot, by counter (LOSSES,
    packet_counters.py)."""
    verdicts: dict[str, int]
    """Number of frames by parser verdict; zeros are left out."""
    parse: dict[str, int]
    """The parser's other counters."""
    extract: dict[str, int]
    """Counters of the first job's extractor."""
    missing_packets: int
    """Packets that sequence numbers of flows show and the port has not delivered so far."""


class DiagramLink(StateStruct, frozen=True, kw_only=True):
    """A mirrored link of a ring of ranks, from one node to another; nodes are named by their place
    in the ring."""

    sender: int
    receiver: int
    sources: tuple[str, ...]
    """Addresses of the sender."""
    destinations: tuple[str, ...]
    channels: tuple[int, ...]
    queue_pairs: tuple[int, ...]
    protocols: tuple[str, ...]
    rx: tuple[str, ...]
    """Switch ports in the job file that mirror this link where the switch receives it from the
    sender."""
    tx: tuple[str, ...]
    """Switch ports in the job file that mirror this link where the switch sends it to the
    receiver."""
    of_trees: bool = msgspec.field(name="tree")
    """True: the link is not part of the ring; only trees use it. The JSON key is older than
    `algorithm`, which also names other algorithms."""
    algorithm: Algorithm = Algorithm.RING
    """The algorithm that the link belongs to: the ring, or the only one that uses it."""


class RingDiagram(StateStruct, frozen=True, kw_only=True):
    """One communicator of the learned job, as needed to draw it."""

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
    """All mirrored links."""
    chunk_links: tuple[int, ...]
    """[chunk] number of mirrored links that carry its sum; -1: the chunk is empty; (): unknown."""
    summary: tuple[str, ...]
    """Sentences, as `flowcheck analyze` prints them."""
    facts: tuple[Finding, ...] | msgspec.UnsetType = msgspec.UNSET
    """[line] what the sentence of `summary` says, as code and arguments (communicators.py); in
    states of earlier releases there is none."""


class DurableCheckpoint(StateStruct, frozen=True, kw_only=True):
    """State of the checkpoints that are written while the chain runs."""

    target: str
    step: Step | None
    """Step of the newest complete checkpoint at the target."""
    name: str
    time_ns: int | None
    age_s: float | None
    count: int
    """Number of checkpoints saved since the chain began."""
    phase: str
    """writing, sending, verifying; empty: no save is under way."""
    phase_step: Step | None
    done_share: float | None
    """Share of the current phase that is done, 0 to 1; None: unknown."""
    error: Finding | None
    """Why the last attempt failed; None: it did not."""
    attempts: int
    """Failed attempts since the last success."""
    short: Finding | None = None
    """Which of several stores lack the checkpoint that was saved last; None: none does."""
    beside: Finding | None = None
    """That another chain saves to the target too; None: nothing tells so."""
    scrubbed_time_ns: int | None = None
    """When all blocks of all saves on several stores had been read last; None: never."""
    doubt: Finding | None = None
    """Why the newest checkpoint is not called exact; None: nothing says so."""
    exact_step: Step | None = None
    """Step of the newest one that is exact, where `doubt` tells that the newest is not; None: none
    is, or the newest is."""
    exact_name: str = ""
    exact_time_ns: int | None = None
    exact_age_s: float | None = None


class EndKind(StrEnum):
    """How a chain ended."""

    ASKED = "asked"
    """A user stopped it: `flowcheck down`, Ctrl-C, a signal."""
    DRAINED = "drained"
    """All sources ended and all their frames were processed: a replay."""
    FAILED = "failed"
    """It failed."""
    KILLED = "killed"


class JobEnd(StateStruct, frozen=True, kw_only=True):
    """The result of one job's replica, when the chain ended."""

    step: Step
    """The last applied step; 0: none was."""
    why: Finding | None = None
    """Why it did not follow to the end; None: it did."""
    in_flight: int | None = None
    """A step that was still incomplete at the end; this is not a loss."""
    checkpoint: str | None = None
    """Folder or URL of the checkpoint; None: none was written."""


class ReplayOptions(StateStruct, frozen=True, kw_only=True):
    """Options of a replay, for the command that repeats it. Paths are absolute."""

    files: tuple[str, ...] = ()
    """Its captures; (): unknown, as in records of earlier releases."""
    job: str | None = None
    """The job file (`--job`)."""
    out: str | None = None
    """The folder for checkpoints (`--out`)."""
    optimizer: str | None = None
    lr: float | None = None
    """Learning rate."""
    speed: float | None = None
    """Speed relative to the time stamps; None: as fast as possible."""
    source: str | None = None
    """How the captures are read; None: the default."""
    jobs: int | None = None
    """Number of jobs in the captures."""
    digests: bool = False
    """Digests of each step are printed."""


NO_OPTIONS = ReplayOptions()


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
    replay: bool = False
    """It read captures (`flowcheck replay`): there is no job to follow again."""
    replay_options: ReplayOptions = NO_OPTIONS

    @property
    def in_order(self) -> bool:
        """Whether the chain ended without failure: a user stopped it, or its sources ended."""
        return self.how in (EndKind.ASKED, EndKind.DRAINED)


TIMELINE_STEPS = 120
"""Newest steps that a job's timeline holds. A choice: more make each state longer."""
ANCHORS_MAX = 3
"""Newest anchors that a job lists. A choice of layout; anchors.jsonl has all."""


class TrafficArrival(StateStruct, frozen=True, kw_only=True):
    """When traffic of a job last arrived, as its supervisor measures it every half second."""

    age_s: float
    """Seconds since its last packet."""
    limit_s: float
    """Seconds after which the job counts as silent: ten of its median steps, at least 30 s."""
    step_s: float | None
    """Median step time in seconds; None: fewer than two steps were complete."""
    newest_step: Step | None
    """The newest step for which a packet arrived; None unless packets of a step that is not
    applied are missing."""
    unplaced_s: float
    """Seconds for which only packets without a plan have arrived, since the last one with a
    plan."""

    @property
    def silent(self) -> bool:
        """Whether the job counts as silent: no packet for longer than limit_s."""
        return self.age_s > self.limit_s


class AnchorFile(StateStruct, frozen=True, kw_only=True):
    """A trainer checkpoint that replaced a step of the replica."""

    step: Step
    file: str
    at: int
    """The replica's step when it read the checkpoint."""


class JobState(StateStruct, frozen=True, kw_only=True):
    """One job that is followed, or that is not learned yet."""

    number: int
    name: str
    run: str
    health: Health
    learned: bool
    why_not: tuple[Finding, ...]
    """Why the job is not learned yet."""
    follows: str | None
    """"gradients" or "parameters": what the replica is updated from; None: not learned."""
    life: int
    """Number of the job's incarnation, from 1."""
    step: Step | None
    """The last step that the replica applied."""
    last_step: Step | None
    """The job's last step, where it is stated: after it no traffic is expected."""
    digest: str
    step_ns: int | None
    """When the replica applied that step."""
    arrived_step: Step | None
    """The last complete step; while steps are `logged`, in their numbering."""
    lag_steps: int
    """Complete steps that the replica has not applied yet, logged ones included."""
    lag_ms: float
    """Milliseconds since the first of those was complete. Where no step waits: from complete to
    applied, for the last step."""
    arrival: TrafficArrival | None
    """None: no job is learned, or the sources have ended."""
    step_rate: float | None
    """Steps per second that the replica applied recently; 0 after a long pause; None: fewer than
    two steps."""
    update_seconds: float | None
    """Seconds that applying the last step took."""
    gradient_bytes: int | None
    under_way: float | None
    """Share of the next step's bytes that is placed, 0 to 1."""
    lost_step: Step | None
    """The step that cannot be rebuilt and before which the replica stopped; None: there is none."""
    lost_why: Finding | None
    steps_lost: int
    """Steps lost since the chain began."""
    awaits_base: bool
    """True: the replica's optimizer state is unknown until a base is given."""
    lacking_step: Step | None = None
    """The last step that lacks bytes which may matter to every element: the replica waits for a
    trainer's checkpoint of it or a later step; None: it waits for none."""
    logged: tuple[int, int] | None
    """First and last logged step, counted from 1 since the job was joined midstream; (1, 0): none
    yet; None: it was not joined midstream."""
    base_search: tuple[Finding, ...] = ()
    """What the watch of a folder waits for to find the base of a job that was joined midstream, and
    why it refused a file last; or the file that it gave. (): nothing was searched."""
    tainted: tuple[Finding, ...]
    """Which elements are not exact: of an earlier step, or without all of their bytes; (): none."""
    tainted_elements: int
    """Elements of the parameters that rest on bytes which no mirror brought."""
    healed: Finding | None = None
    """What made tainted elements exact again last; None: nothing did."""
    healed_elements: int = 0
    """Tainted elements that the trainer's values made exact again, since the chain began."""
    asked_bytes: int = 0
    """Bytes that the trainer sent for that."""
    kept_steps: JournalFigures | None = None
    """What `[gradient_log] folder` keeps; None: it is not set, or nothing was kept yet."""
    copied_by: CopiesRecord | None = None
    """Copies on other machines that follow the replica; None: none may."""
    copy_of: CopyRecord | None = None
    """What the replica is a copy of; None: it is none."""
    assumed: tuple[Finding, ...]
    """Facts that no observation could have contradicted and that the replica relies on."""
    addresses: tuple[str, ...]
    """Addresses at both ends of its connections."""
    audited_step: Step | None
    audit_passed: bool | None
    """Whether the audits since the last base passed; None: there was none. If one failed, the
    three are of the lowest step that did; else of the last audit."""
    audit_differs: str
    """Name of the first tensor that differed in that audit; "": none did."""
    equal_step: Step | None = None
    """The last step that an audit found equal, before the first step that one did not; None: there
    is none."""
    audit_doubt: Finding | None = None
    """Why the replica is not proved exact since an audit failed; None: none failed."""
    damaged_files: tuple[Finding, ...] = ()
    """Files of the trainer that differ, where another one of the same step is equal; the newest
    DAMAGED_MAX."""
    audited_files: dict[str, int] | None = None
    """{outcome: number of files} of a watched folder; None: none was watched."""
    anchors: tuple[AnchorFile, ...]
    """The newest ANCHORS_MAX, ascending."""
    anchors_before: int
    """Number of anchors older than those in `anchors`."""
    durable: DurableCheckpoint | None
    """State of its checkpoints; None: the job file has no [persist], and none was written when the
    chain ended."""
    kept_at: str | None
    """Folder into which the replica is saved when the chain stops; None: not stated."""
    served: str | None
    """URL at which its steps are served; None: they are not."""
    timeline: tuple[StepState, ...]
    """The newest TIMELINE_STEPS steps, oldest first."""
    diagram: tuple[RingDiagram, ...]
    """One diagram per communicator; () until the job is learned."""


DAMAGED_MAX = 8
"""Damaged files that a state names. A choice of layout."""
VERSION = 2
"""Version of the state. Since 2, facts are findings instead of sentences."""
EVENTS_MAX = 60
"""Newest events that a state holds, without those of every step (arrived, applied). A choice of
layout; events.jsonl has all."""


class ChainState(StateStruct, frozen=True, kw_only=True):
    """The state of a chain at one moment."""

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
    """True: the chain was told to end."""
    in_order: bool
    """True: the chain ends or has ended without failure, because a user stopped it or its sources
    ended."""
    ended: ChainEnd | None
    """How and why it ended; None: it runs, or there is no record yet."""
    watched: str | None
    """Address of its own watch server; None: it has none, or the address is not known here."""
    watch_port_in_log: bool = False
    """True: its watch server has a port that the kernel chose; the log names it."""
    stages: tuple[StageState, ...]
    rings: tuple[RingState, ...]
    """State of all rings; of a chain that has ended, at its end."""
    jobs: tuple[JobState, ...]
    models: tuple[ModelTaint, ...] = ()
    """What is not exact of each model: of rings of one training job together, of independent jobs
    each alone."""
    event_counts: dict[str, int]
    """{kind: number of events} since the chain began, over all jobs."""
    packets_came_late: int
    """Packets that were missing at one reading and present at a later one."""
    events: tuple[Event, ...]
    """The newest EVENTS_MAX events, oldest first."""
    problems: tuple[Finding, ...]
    """Parts of the state that could not be read and are left out, and record files on a full
    disk."""
    unwritten_lines: int = 0
    """Lines of record files that could not be written since the chain began, over all jobs."""


def encode_state(state: ChainState) -> bytes:
    """The state as the JSON text of state.json."""
    return msgspec.json.encode(state)


def decode_state(text: bytes) -> ChainState:
    """Decodes state.json. Raises msgspec.ValidationError for other JSON and for a state of another
    version."""
    return msgspec.json.decode(text, type=ChainState)
