"""Estimate of the memory that the FlowCheck machine needs for a planned job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from flowcheck.config import OptimizerConfig, ReplicaConfig, RingConfig
from flowcheck.findings.catalog.plan_figures import (
    EARLIER_STEPS,
    NEWEST_STEP,
    OPTIMIZER_STATES,
    RING_SLOTS,
    STAGED,
    STEP_IN_PROGRESS,
)
from flowcheck.findings.catalog.plan_figures import GENERATIONS as TWO_GENERATIONS
from flowcheck.findings.finding import Finding, code_in_words
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.ops.planning.wire_traffic import CollectiveTraffic, total_traffic
from flowcheck.replica.param_layout import Layout

COPIES_LEAST = 2
"""Copies of a step that a replica always has: the newest step and the step in progress."""


class MemoryPart(StrEnum):
    """What the memory of one line of the estimate is used for."""

    PARAMETERS = "parameters"
    OPTIMIZER_STATES = "optimizer_states"
    STEP_IN_PROGRESS = "step_in_progress"
    EARLIER_STEPS = "earlier_steps"
    GRADIENTS = "gradients"
    SAVED_STEP = "saved_step"
    """The copy of a step while a checkpoint is saved."""
    SERVED_STEP = "served_step"
    """The copy of a step while `flowcheck serve` sends it."""
    GRADIENT_LOG = "gradient_log"
    APPLIED_GRADIENTS = "applied_gradients"
    """Logs of gradients that the replica has already applied."""
    WAITING_GRADIENTS = "waiting_gradients"
    """Gradients on their way to `[gradient_log] folder`."""
    COPIED_CHANGES = "copied_changes"
    """Gradients of the newest steps, for copies on other machines."""
    STAGING = "staging"
    RINGS = "rings"
    RINGS_AND_STAGING = "rings_and_staging"
    """Rings, flow tables and staging as the job file sizes them."""


_SAID_AS = {
    MemoryPart.STEP_IN_PROGRESS: "the step being made",
    MemoryPart.SAVED_STEP: "a step that is saved",
    MemoryPart.SERVED_STEP: "a step that is served",
    MemoryPart.APPLIED_GRADIENTS: "gradients of applied steps",
    MemoryPart.WAITING_GRADIENTS: "gradients on their way to the disk",
    MemoryPart.COPIED_CHANGES: "gradients for copies",
    MemoryPart.RINGS_AND_STAGING: "rings, staging",
}
"""Where the words are not the code's own."""


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the memory estimate."""

    part: MemoryPart
    bytes: int
    why: Finding
    job: str = ""
    """Name of the job that uses this memory; "": the only job, or all jobs together."""

    @property
    def what(self) -> str:
        """In words, for people."""
        words = code_in_words(self.part, _SAID_AS)
        return f"{words} of {self.job}" if self.job else words


def memory_json(parts: Iterable[MemoryItem]) -> list[dict[str, Any]]:
    """The lines for JSON: all fields, and the text of each part as "what"."""
    return [{**msgspec.to_builtins(part), "what": part.what} for part in parts]


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a planned job: the lines and their sum, bytes."""

    parts: tuple[MemoryItem, ...]
    staging_bytes: int
    """The least value for `[staging] size_bytes`, bytes: everything that arrives before the plan
    is proved."""
    parameters: int = 0
    """Trained elements of the model."""
    step_bytes: int = 0
    """Bytes of one step: parameters and all optimizer states."""

    @property
    def bytes(self) -> int:
        """Sum of all lines, bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def per_parameter(self) -> float:
        """Bytes of one step (parameters and optimizer states) per trained element."""
        return self.step_bytes / max(self.parameters, 1)


def estimate_memory(
    model: MetaModel,
    optimizer: OptimizerConfig,
    before_proof: Sequence[CollectiveTraffic],
    ports: int,
    keep_bytes: int = ReplicaConfig().keep_bytes,
) -> MemoryEstimate:
    """Memory that the FlowCheck machine needs for one planned job.

    before_proof: traffic up to the first iteration that is like all later ones; it waits in
    staging, because no earlier iteration proves the plan.
    ports: number of mirrored ports; each has its own ring and its own staging.
    keep_bytes: memory for earlier steps, as `[replica] keep_bytes`.
    Raises ConfigError where the optimizer's state sizes cannot be computed.
    """
    out, into = total_traffic(before_proof)
    staging = out.bytes + into.bytes
    ring = RingConfig()
    held = replica_memory(model, optimizer, keep_bytes)
    parts = (
        *held.parts,
        MemoryItem(part=MemoryPart.STAGING, bytes=ports * staging, why=STAGED()),
        MemoryItem(
            part=MemoryPart.RINGS,
            bytes=ports * ring.slots * ring.slot_bytes,
            why=RING_SLOTS(slots=ring.slots, slot_bytes=ring.slot_bytes),
        ),
    )
    return MemoryEstimate(
        parts=parts,
        staging_bytes=staging,
        parameters=held.parameters,
        step_bytes=held.step_bytes,
    )


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Memory of one replica."""

    parts: tuple[MemoryItem, ...]
    parameters: int
    """Trained elements of the model."""
    step_bytes: int
    """Bytes of one step: parameters and all optimizer states."""
    spare: int
    """Earlier steps that fit into keep_bytes, in addition to the newest step and the step in
    progress."""
    gradient_bytes: int
    """Bytes of one step's gradients in shared memory (one of the two generations)."""


def replica_memory(model: MetaModel, optimizer: OptimizerConfig, keep_bytes: int) -> ReplicaMemory:
    """Memory of a replica of `model` and of its two gradient generations. keep_bytes: memory for
    earlier steps, as `[replica] keep_bytes`. Raises ConfigError where the optimizer's state sizes
    cannot be computed."""
    from flowcheck.plane.shared_memory.gradient_double_buffer import GENERATIONS
    from flowcheck.replica.optimizer.state_section_names import PARAMETERS
    from flowcheck.replica.optimizer.state_sections import describe_sections
    from flowcheck.replica.state_file.file_header import COPIES_MAX

    trained = sum(tensor.wire.nbytes for tensor in model.trained)
    held = {
        s.name: s.size_bytes for s in describe_sections(_layout(model), optimizer, leaves_out=False)
    }
    names = [name for name in held if name != PARAMETERS]
    states = sum(held[name] for name in names)
    copy = trained + states
    kept = min(COPIES_MAX - COPIES_LEAST, keep_bytes // max(copy, 1))
    told = ", ".join(names) or "none"
    parts = (
        MemoryItem(part=MemoryPart.PARAMETERS, bytes=trained, why=NEWEST_STEP()),
        MemoryItem(
            part=MemoryPart.OPTIMIZER_STATES,
            bytes=states,
            why=OPTIMIZER_STATES(optimizer=optimizer.name or "as made", states=told),
        ),
        MemoryItem(part=MemoryPart.STEP_IN_PROGRESS, bytes=copy, why=STEP_IN_PROGRESS()),
        MemoryItem(
            part=MemoryPart.EARLIER_STEPS,
            bytes=kept * copy,
            why=EARLIER_STEPS(steps=kept, keep_bytes=keep_bytes, most=COPIES_MAX - COPIES_LEAST),
        ),
        MemoryItem(part=MemoryPart.GRADIENTS, bytes=GENERATIONS * trained, why=TWO_GENERATIONS()),
    )
    numbers = sum(tensor.wire.nbytes // tensor.wire.element_bytes for tensor in model.trained)
    return ReplicaMemory(parts, numbers, copy, kept, trained)


def _layout(model: MetaModel) -> Layout:
    wires = [tensor.wire for tensor in model.trained]
    usual = {2: "bfloat16", 4: "float32", 8: "float64"}
    return Layout.of(
        [(wire.sizes, wire.strides) for wire in wires],
        names=[tensor.name for tensor in model.trained],
        dtype=[wire.dtype or usual[wire.element_bytes] for wire in wires],
    )
