"""One job that is followed."""

from __future__ import annotations

from flowcheck.ops.watch.parts.diagram import Diagram
from flowcheck.ops.watch.parts.durable import Durable
from flowcheck.ops.watch.parts.health import Health
from flowcheck.ops.watch.parts.part import Part
from flowcheck.ops.watch.parts.step import Step

TIMELINE_STEPS = 120
"""Steps a job's timeline holds, the newest ones."""
ANCHORS = 3
"""Files of the trainer's that a job tells of, the newest ones."""


class Arrival(Part, frozen=True, kw_only=True):
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


class Anchor(Part, frozen=True, kw_only=True):
    """A file of the trainer's that took the place of a step of the replica's."""

    step: int
    file: str
    at: int
    """The replica's step then."""


class Job(Part, frozen=True, kw_only=True):
    """One job that is followed; or is to be, as soon as it is learned."""

    number: int
    name: str
    run: str
    health: Health
    learned: bool
    why_not: tuple[str, ...]
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
    arrival: Arrival | None
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
    lost_why: str
    steps_lost: int
    """Since the chain began."""
    awaits_base: bool
    """The job began with a state that nobody knows."""
    logged: tuple[int, int] | None
    """Steps that are kept meanwhile, counted from 1 since the job was joined amid its run; (1, 0):
    none yet; None: it was not."""
    tainted: tuple[str, ...]
    """What of it is not of its step; () where all is."""
    assumed: tuple[str, ...]
    """What it rests on that nothing seen could have contradicted."""
    addresses: tuple[str, ...]
    """Of the ports its connections were seen at."""
    audited_step: int | None
    audit_passed: bool | None
    """Of the last audit; None: never audited."""
    audit_differs: str
    """The first tensor that differed then."""
    anchors: tuple[Anchor, ...]
    """The newest ANCHORS, ascending."""
    anchors_before: int
    """How many more there were."""
    durable: Durable | None
    """None: the job file states no [persist], and nothing was written as the chain ended."""
    kept_at: str | None
    """The folder its replica is written to when the chain stops."""
    served: str | None
    """The URL its steps are served at."""
    timeline: tuple[Step, ...]
    """Ascending in time, the newest TIMELINE_STEPS."""
    diagram: tuple[Diagram, ...]
    """() until it is learned."""
