"""The stages of a chain: one row for each kind, and what its name stands for.

Whatever starts, restarts, stops, counts or shows stages asks their rows here and knows no name. A
row is data: what a stage needs is imported in its own process only, by its `factory`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from flowcheck.config import JobConfig


class InstancePer(StrEnum):
    """What a stage has one process for."""

    SOURCE = "source"
    """Each [[source]]: one mirror port, or file."""
    RING = "ring"
    """Each ring: one queue of a source."""
    JOB = "job"
    """Each training job that is followed behind the same ports."""
    CHAIN = "chain"


class Position(StrEnum):
    """How far a stage is. Those of frames are fields of a ring, in slots since the chain began."""

    HEAD = "head"
    """Of frames that are captured; what is shown of it is what it received."""
    PARSED = "parsed"
    TAIL = "tail"
    """Of frames that are extracted, for each job one of its own."""
    STEP = "step"
    """The last one that the replica took."""
    NONE = ""
    """It has none; where it dies again and again, nothing tells that it got on meanwhile."""


class WaitsFor(Enum):
    """What is up before a stage is started."""

    NOTHING = auto()
    FRAME_TAKERS = auto()
    """All that take frames: a job's start-up comes once, so none may come before them. An updater
    that loads torch for seconds is not waited for: gradients wait in the shard."""
    WHOLE_CHAIN = auto()
    """Everything that others need."""


def always(_: JobConfig) -> bool:
    return True


def captures_frames(config: JobConfig) -> bool:
    """Whether frames are captured, else the gradients come from logs."""
    return bool(config.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """All that others know of one kind of stage. README.md says how one is added."""

    name: str
    """With the number behind it where there are several, `parse-0`: of its pid file, log, sockets,
    events and metrics. Those are kept, so it stays."""
    factory: str = ""
    """`module:callable`, imported late: torch stays out of the packet path. It is called with the
    run directory, its settings and, where `numbered`, the number, and makes a Service."""
    verb: str = ""
    """`flowcheck VERB` in place of `flowcheck stage NAME`: it has no factory."""
    per: InstancePer = InstancePer.JOB
    exists: Callable[[JobConfig], bool] = always
    """Whether a job file asks for it."""
    waits_for: WaitsFor = WaitsFor.NOTHING
    optional: bool = False
    """No other one needs it. Whatever becomes of it, the chain goes on: it is started again for
    ever, later each time, and nothing waits for it."""
    takes_frames: bool = False
    """From a ring."""
    brings_frames: bool = False
    """Into rings: it is stopped before all others, and may end by itself once its source has."""
    position: Position = Position.NONE
    uses_torch: bool = False
    """It makes values with torch: its process is forked from one that has loaded it ahead
    (supervisor/stage_starter.py)."""
    serves_checkpoints: bool = False
    """Its process has torch loaded and writes checkpoints for the supervisor after its end."""
    shared: bool = False
    """All jobs behind the same ports need the same processes of it."""
    says_hello: bool = True
    """Once it works. One that does not counts as up from its start."""
    niceness: int = 0
    """Its nice value (sched(7)). On cores that stages share those go first that take frames: a
    ring that overflows is lost for good, a step or a checkpoint that comes later is not."""
    counts_whole_steps: bool = False
    """Its Drained message says how many steps the stream held, and what kept it from more."""

    @property
    def numbered(self) -> bool:
        return self.per in (InstancePer.SOURCE, InstancePer.RING)

    def instances(self, config: JobConfig) -> int:
        """How many processes a job file asks for."""
        if not self.exists(config):
            return 0
        each = {InstancePer.SOURCE: config.source, InstancePer.RING: config.rings}
        return len(each[self.per]) if self.per in each else 1

    def instance(self, number: int) -> str:
        """The name of one of its processes."""
        return f"{self.name}-{number}" if self.numbered else self.name

    def command(self, number: int) -> list[str]:
        """Words behind `flowcheck` that start one."""
        words = [self.verb] if self.verb else ["stage", self.name]
        return [*words, "--number", str(number)] if self.numbered else words

    def rings(self, config: JobConfig, number: int) -> list[int]:
        """The rings that one of its processes works on."""
        if self.per is InstancePer.RING:
            return [number]
        sources = [source for source, _ in config.rings]
        its = {number} if self.per is InstancePer.SOURCE else {*sources}
        return [ring for ring, source in enumerate(sources) if source in its]


STAGES = (
    StageSpec(
        name="update",
        factory="flowcheck.stages.copy_updater.updaters:updater_of",
        position=Position.STEP,
        serves_checkpoints=True,
        niceness=5,
        uses_torch=True,
    ),
    StageSpec(
        name="extract",
        factory="flowcheck.stages.extraction.extract_stage:ExtractService",
        exists=captures_frames,
        takes_frames=True,
        position=Position.TAIL,
        counts_whole_steps=True,
    ),
    StageSpec(
        name="persist",
        factory="flowcheck.stages.checkpointing.persist_stage:PersistService",
        exists=lambda config: config.persist is not None,
        waits_for=WaitsFor.WHOLE_CHAIN,
        optional=True,
        niceness=10,
        uses_torch=True,
    ),
    StageSpec(
        name="serve",
        factory="flowcheck.stages.checkpointing.serve_stage:ServeService",
        exists=lambda config: config.serve is not None,
        waits_for=WaitsFor.WHOLE_CHAIN,
        optional=True,
        uses_torch=True,
    ),
    StageSpec(
        name="copies",
        factory="flowcheck.stages.replica_copies.copies_stage:CopiesService",
        exists=lambda config: config.copies is not None,
        waits_for=WaitsFor.WHOLE_CHAIN,
        optional=True,
        uses_torch=True,
    ),
    StageSpec(
        name="watch",
        verb="watch",  # it reads what any other process may, and hears nothing
        per=InstancePer.CHAIN,
        exists=lambda config: config.watch is not None,
        optional=True,
        says_hello=False,
    ),
    StageSpec(
        name="audit",
        verb="audit",  # it reads the replica as any other process may
        per=InstancePer.CHAIN,
        exists=lambda config: config.audit is not None,
        waits_for=WaitsFor.WHOLE_CHAIN,
        optional=True,
        says_hello=False,
        uses_torch=True,
    ),
    StageSpec(
        name="hook",
        factory="flowcheck.stages.healing.hook_stage:HookService",
        exists=lambda config: config.hook is not None,
        waits_for=WaitsFor.WHOLE_CHAIN,
        optional=True,
        niceness=10,
        uses_torch=True,
    ),
    StageSpec(
        name="parse",
        factory="flowcheck.stages.packet_capture.parse_stage:ParseService",
        per=InstancePer.RING,
        exists=captures_frames,
        takes_frames=True,
        position=Position.PARSED,
        shared=True,
    ),
    StageSpec(
        name="capture",
        factory="flowcheck.stages.packet_capture.capture_stage:capture_service",
        per=InstancePer.SOURCE,
        exists=captures_frames,
        waits_for=WaitsFor.FRAME_TAKERS,
        brings_frames=True,
        position=Position.HEAD,
        shared=True,
    ),
)
"""In the order in which they are started; they are asked to leave the other way round, which is
along the flow of frames."""
SUPERVISOR = StageSpec(name="supervisor", per=InstancePer.CHAIN, shared=True)
"""No stage: the process that starts them, which has a pid file and a line in the state like one."""


class NamedStage(NamedTuple):
    """What the name of a process says."""

    spec: StageSpec
    number: int
    """Of the source, or the ring; 0 where there is one of it."""


def stage_named(name: str) -> NamedStage:
    """Of a process of a chain. A name that no row has, as in a file of another version, is that of
    a stage of which nothing is known: this never fails."""
    kind, dash, number = name.rpartition("-")
    for spec in (*STAGES, SUPERVISOR):
        if name == spec.name:
            return NamedStage(spec, 0)
        if dash and spec.numbered and kind == spec.name and number.isdecimal():
            return NamedStage(spec, int(number))
    return NamedStage(StageSpec(name=name), 0)


def stage_names(config: JobConfig, reader: int = 0) -> list[str]:
    """Of the processes that a job file asks for, in the order of their start. reader: a further job
    on the same ports has only those that there is one of for each job."""
    return [
        spec.instance(number)
        for spec in STAGES
        if not reader or spec.per is InstancePer.JOB
        for number in range(spec.instances(config))
    ]


def launchable_stages() -> dict[str, StageSpec]:
    """{name: row} of those that `flowcheck stage` runs."""
    return {spec.name: spec for spec in STAGES if spec.factory}


def stage_at(position: Position) -> StageSpec:
    """Whose position that is: the first row that has it."""
    return next(spec for spec in STAGES if spec.position is position)
