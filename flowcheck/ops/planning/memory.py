"""Memory that the machine with FlowCheck needs for a planned job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from flowcheck.config import OptimizerConfig, ReplicaConfig, RingConfig
from flowcheck.ops.planning.cost import Cost, total
from flowcheck.ops.planning.model import Model
from flowcheck.replica.layout import Layout

COPIES_LEAST = 2
"""The newest step, and the one being made."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the account."""

    what: str
    bytes: int
    why: str


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    parts: tuple[Part, ...]
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


def memory_of(
    model: Model,
    optimizer: OptimizerConfig,
    before_proof: Sequence[Cost],
    ports: int,
    keep_bytes: int = ReplicaConfig().keep_bytes,
) -> Memory:
    """before_proof: everything up to the first iteration that is like all later ones, which has to
    wait in the staging; ports: mirrored ones, each with a ring and a staging of its own."""
    out, into = total(before_proof)
    staging = out.bytes + into.bytes
    ring = RingConfig()
    held = held_by(model, optimizer, keep_bytes)
    parts = (
        *held.parts,
        Part(what="staging", bytes=ports * staging, why="start-up and first iterations"),
        Part(
            what="rings",
            bytes=ports * ring.slots * ring.slot_bytes,
            why=f"{ring.slots:,} slots of {ring.slot_bytes:,} bytes for each mirrored port",
        ),
    )
    return Memory(
        parts=parts,
        staging_bytes=staging,
        parameters=held.parameters,
        step_bytes=held.step_bytes,
    )


@dataclass(frozen=True, slots=True)
class Held:
    """What a replica takes."""

    parts: tuple[Part, ...]
    parameters: int
    """Numbers that are trained."""
    step_bytes: int
    """Of one whole step."""
    spare: int
    """Whole steps beside the newest and the one being made."""
    gradient_bytes: int
    """Of all parameters, as they are staged for one step."""


def held_by(model: Model, optimizer: OptimizerConfig, keep_bytes: int) -> Held:
    """Of a replica of `model` and of the gradients it is stepped with."""
    from flowcheck.plane.shard import GENERATIONS
    from flowcheck.replica.kept.header import COPIES_MAX
    from flowcheck.replica.kept.sections import describe
    from flowcheck.replica.rules.optimizers import PARAMETERS

    trained = sum(tensor.wire.nbytes for tensor in model.trained)
    held = {s.name: s.size_bytes for s in describe(_layout(model), optimizer, leaves_out=False)}
    names = [name for name in held if name != PARAMETERS]
    states = sum(held[name] for name in names)
    copy = trained + states
    kept = min(COPIES_MAX - COPIES_LEAST, keep_bytes // max(copy, 1))
    told = ", ".join(names) or "none"
    parts = (
        Part(what="parameters", bytes=trained, why="the replica's newest step"),
        Part(what="optimizer states", bytes=states, why=f"{optimizer.name or 'as made'}: {told}"),
        Part(what="the step being made", bytes=copy, why="new state beside the old one"),
        Part(
            what="earlier steps",
            bytes=kept * copy,
            why=f"{kept} whole steps, of {keep_bytes:,} bytes (replica.keep_bytes) and at most "
            f"{COPIES_MAX - COPIES_LEAST}",
        ),
        Part(what="gradients", bytes=GENERATIONS * trained, why="two generations"),
    )
    numbers = sum(tensor.wire.nbytes // tensor.wire.element_bytes for tensor in model.trained)
    return Held(parts, numbers, copy, kept, trained)


def _layout(model: Model) -> Layout:
    wires = [tensor.wire for tensor in model.trained]
    usual = {2: "bfloat16", 4: "float32", 8: "float64"}
    return Layout.of(
        [(wire.sizes, wire.strides) for wire in wires],
        names=[tensor.name for tensor in model.trained],
        dtype=[wire.dtype or usual[wire.element_bytes] for wire in wires],
    )
