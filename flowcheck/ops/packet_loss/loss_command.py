"""`flowcheck plan-loss`: plans packet loss, simulates it and draws it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from flowcheck.config import RingConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import (
    FACTORY_FOR_LOSS,
    GRADIENTS_TWICE,
    NO_GRADIENTS_SAID,
)
from flowcheck.findings.catalog.refused_settings import FROM_TO, ONE_OF
from flowcheck.ops.packet_loss.copy_loss import LossProcess
from flowcheck.ops.packet_loss.loss_plan import (
    LossPlan,
    LossSettings,
    certain,
    make_loss_plan,
)
from flowcheck.ops.packet_loss.loss_report import as_dict, print_loss_plan
from flowcheck.ops.packet_loss.loss_simulation import (
    Compared,
    compared,
    simulate_hooked,
    simulate_steps,
    simulate_stops,
    simulate_taint,
)
from flowcheck.ops.packet_loss.replica_odds import files_at_once
from flowcheck.ops.packet_loss.ring_overflow import RingBurst
from flowcheck.ops.packet_loss.step_packets import StepPackets, step_packets
from flowcheck.ops.planning.ddp_collectives import DdpOptions, PlannedCollective, ddp_traffic
from flowcheck.ops.planning.meta_device_model import MetaModel, load_model
from flowcheck.ops.planning.wire_traffic import MirroredPort
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind

MOST_GRADIENT_BYTES = 10**12
"""Bytes of the gradients of one ring. A choice: every message of the step is counted."""
ELEMENT_BYTES = (1, 2, 4, 8)
EXIT_NOT_AS_PLANNED = 1
"""Exit code where a burst overflows the ring, or a simulation contradicts the plan."""


class ModelOfPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the size of a step comes from: a model, or plain numbers."""

    model: str | None
    """Function that returns the module, or a job file; None: `gradient_bytes` has it."""
    settings: tuple[str, ...]
    dtype: str | None
    gradient_bytes: float | None
    element_bytes: int

    def __post_init__(self) -> None:
        if self.model is None and self.gradient_bytes is None:
            raise ConfigError("--gradient-bytes", None, NO_GRADIENTS_SAID())
        if self.model is not None and self.gradient_bytes is not None:
            raise ConfigError("--gradient-bytes", self.gradient_bytes, GRADIENTS_TWICE())
        size = self.gradient_bytes
        if size is not None and not self.element_bytes <= size <= MOST_GRADIENT_BYTES:
            right = FROM_TO(least=self.element_bytes, most=MOST_GRADIENT_BYTES)
            raise ConfigError("--gradient-bytes", size, right)
        if self.element_bytes not in ELEMENT_BYTES:
            raise ConfigError("--element-bytes", self.element_bytes, ONE_OF(ELEMENT_BYTES))


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a job file states beside its model."""

    clip_norm: bool = False
    ring: RingConfig = RingConfig()


def packets_of(stated: ModelOfPlan, wire: MirroredPort) -> tuple[StepPackets, JobFacts]:
    """The packets of a step. Raises ConfigError where the model or the job file tells none."""
    facts = JobFacts()
    if stated.model is None:
        assert stated.gradient_bytes is not None
        elements = int(stated.gradient_bytes) // stated.element_bytes
        tensor = PlannedCollective(
            kind=CollectiveKind.ALL_REDUCE,
            work_bytes=elements * stated.element_bytes,
            role=CollectiveRole.BUCKET,
            element_bytes=stated.element_bytes,
        )
        return step_packets([tensor], wire), facts
    if stated.model.endswith(".toml"):
        model, options, facts = _of_job_file(Path(stated.model))
    else:
        model = load_model(stated.model, stated.settings, dtype=stated.dtype, loss=None)
        options = DdpOptions()
    return step_packets(ddp_traffic(model, options).each, wire), facts


def _of_job_file(path: Path) -> tuple[MetaModel, DdpOptions, JobFacts]:
    from flowcheck.ops.job_setup.checked_job_file import load_checked_job
    from flowcheck.ops.job_setup.job_file_references import factory_model

    config = load_checked_job(path)
    model = config.model
    if model.factory is None or config.optimizer is None:
        raise ConfigError("model.factory", model.factory, FACTORY_FOR_LOSS())
    cap = None if model.bucket_cap_mb is None else int(model.bucket_cap_mb * (1 << 20))
    options = DdpOptions(cap_bytes=cap, find_unused_parameters=model.find_unused_parameters)
    clipped = config.optimizer.clip_norm is not None
    return factory_model(model), options, JobFacts(clip_norm=clipped, ring=config.ring)


class LossRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of a plan."""

    simulate: int | None
    seed: int
    svg: Path | None
    as_json: bool


def run(
    packets: StepPackets,
    wire: MirroredPort,
    settings: LossSettings,
    request: LossRequest,
    *,
    of_model: bool,
) -> int:
    """Prints the plan, and returns EXIT_NOT_AS_PLANNED if a burst overflows the ring or a
    simulation contradicts the plan, else 0. Raises ConfigError for values that allow no plan."""
    plan = make_loss_plan(packets, wire, settings, of_model=of_model)
    found = () if request.simulate is None else simulated(plan, request.simulate, request.seed)
    if request.svg is not None:
        from flowcheck.ops.packet_loss.loss_svg import loss_svg_of
        from flowcheck.ops.svg_drawing import write_picture

        write_picture(request.svg, loss_svg_of(plan))
    if request.as_json:
        json.dump(as_dict(plan, found), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_loss_plan(plan, found)
    over = settings.burst is not None and settings.burst.lost_frames > 0
    wrong = over or not all(one.agrees for one in found)
    return EXIT_NOT_AS_PLANNED if wrong else 0


def simulated(plan: LossPlan, samples: int, seed: int) -> tuple[Compared, ...]:
    """The figures of the plan beside those of a simulation of so many steps and days."""
    settings, chosen = plan.settings, plan.chosen
    process = LossProcess(loss=plan.copy_loss, burst_packets=settings.burst_packets)
    touched, stopped = simulate_steps(
        plan.packets,
        settings.coverage,
        process,
        rings=settings.rings,
        steps=samples,
        seed=seed,
    )
    lost = certain(chosen.odds.unrepaired)
    days, there = simulate_stops(lost, plan.steps_day, samples, seed + 1)
    rule, files = chosen.whole_rule, settings.healing
    found = [
        compared("a step is repaired", chosen.odds.repaired, touched - stopped, samples),
        compared("a step stops the replica", chosen.odds.unrepaired, stopped, samples),
        compared("a day has a stop", rule.stop_day, days, samples),
        compared("a step of the first day is there", rule.exact_share, there, samples),
    ]
    if files is not None and rule.kept_share is not None:
        bare = files_at_once(files.checkpoint_every)
        kept = samples - simulate_taint(lost, bare, samples, seed + 3)
        found.append(compared("with checkpoints, a step is there", rule.kept_share, kept, samples))
    if files is not None and chosen.taint is not None:
        tainted = simulate_taint(lost, files, samples, seed + 2)
        exact = samples - tainted
        found.append(
            compared("with healing, a step is exact", chosen.taint.exact_share, exact, samples)
        )
        if files.hook_delay is not None:
            hooked = simulate_hooked(lost, files, samples, seed + 4)
            planned = chosen.taint.hook_step
            found.append(compared("a step is healed by a hook", planned, hooked, samples))
    return tuple(found)


class BurstOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options about the ring; None: not given."""

    ring_slots: int | None
    line_gbps: float | None
    drain_gbps: float | None
    burst_bytes: float | None


def ring_burst(
    packets: StepPackets, wire: MirroredPort, facts: JobFacts, stated: BurstOptions
) -> RingBurst | None:
    """The burst that a ring has to hold; None where no rate is stated."""
    if stated.drain_gbps is None or stated.line_gbps is None:
        return None
    # Both halves of each all-reduce pass a link: 2 (R - 1) of R chunks.
    whole = packets.packets * wire.pmtu_bytes * 2 * (wire.ranks - 1) // wire.ranks
    return RingBurst(
        slots=facts.ring.slots if stated.ring_slots is None else stated.ring_slots,
        line_gbps=stated.line_gbps,
        drain_gbps=stated.drain_gbps,
        burst_bytes=whole if stated.burst_bytes is None else stated.burst_bytes,
        pmtu_bytes=wire.pmtu_bytes,
    )
