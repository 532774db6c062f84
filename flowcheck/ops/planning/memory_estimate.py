"""Estimate of the memory that the FlowCheck machine needs for a planned job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from flowcheck.config import OptimizerConfig, ReplicaConfig, RingConfig
from flowcheck.findings.catalog.planned_memory import (
    EARLIER_STEPS,
    NEWEST_STEP,
    OPTIMIZER_STATES,
    RING_SLOTS,
    STAGED,
    STEP_IN_PROGRESS,
)
from flowcheck.findings.catalog.planned_memory import GENERATIONS as TWO_GENERATIONS
from flowcheck.findings.finding import Finding
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.ops.planning.wire_traffic import CollectiveTraffic, total
from flowcheck.replica.param_layout import Layout

COPIES_LEAST = 2
"""The newest step, and the one being made."""


class MemoryPart(StrEnum):
    """What memory is taken for."""

    PARAMETERS = "parameters"
    OPTIMIZER_STATES = "optimizer_states"
    STEP_IN_PROGRESS = "step_in_progress"
    EARLIER_STEPS = "earlier_steps"
    GRADIENTS = "gradients"
    SAVED_STEP = "saved_step"
    """The copy of a step while it is saved."""
    SERVED_STEP = "served_step"
    """The copy of a step while it is served."""
    GRADIENT_LOG = "gradient_log"
    APPLIED_GRADIENTS = "applied_gradients"
    """Logs of gradients that the replica has applied."""
    STAGING = "staging"
    RINGS = "rings"
    RINGS_AND_STAGING = "rings_and_staging"
    """As a job file states them, with their flow tables."""


_SAID_AS = {
    MemoryPart.STEP_IN_PROGRESS: "the step being made",
    MemoryPart.SAVED_STEP: "a step that is saved",
    MemoryPart.SERVED_STEP: "a step that is served",
    MemoryPart.APPLIED_GRADIENTS: "gradients of applied steps",
    MemoryPart.RINGS_AND_STAGING: "rings, staging",
}
"""Where the words are not the code's own."""


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the account."""

    part: MemoryPart
    bytes: int
    why: Finding
    job: str = ""
    """Name of the job that takes it; "": one job, or all of them."""

    @property
    def what(self) -> str:
        """In words, for people."""
        words = _SAID_AS.get(self.part, self.part.replace("_", " "))
        return f"{words} of {self.job}" if self.job else words


def memory_json(parts: Iterable[MemoryItem]) -> list[dict[str, Any]]:
    """The account for programs, with the words of each line beside its code."""
    return [{**msgspec.to_builtins(part), "what": part.what} for part in parts]


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    parts: tuple[MemoryItem, ...]
    staging_bytes: int
    """What [staging] size_bytes must be at least."""
    parameters: int = 0
    """Numbers that are trained."""
    step_bytes: int = 0
    """Of one whole step: parameters and all optimizer states."""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def per_parameter(self) -> float:
        """Bytes of a whole step for each number that is trained."""
        return self.step_bytes / max(self.parameters, 1)


def estimate_memory(
    model: MetaModel,
    optimizer: OptimizerConfig,
    before_proof: Sequence[CollectiveTraffic],
    ports: int,
    keep_bytes: int = ReplicaConfig().keep_bytes,
) -> MemoryEstimate:
    """before_proof: everything up to the first iteration that is like all later ones, which has to
    wait in the staging; ports: mirrored ones, each with a ring and a staging of its own."""
    out, into = total(before_proof)
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
    """What a replica takes."""

    parts: tuple[MemoryItem, ...]
    parameters: int
    """Numbers that are trained."""
    step_bytes: int
    """Of one whole step."""
    spare: int
    """Whole steps beside the newest and the one being made."""
    gradient_bytes: int
    """Of all parameters, as they are staged for one step."""


def replica_memory(model: MetaModel, optimizer: OptimizerConfig, keep_bytes: int) -> ReplicaMemory:
    """Of a replica of `model` and of the gradients it is stepped with."""
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
