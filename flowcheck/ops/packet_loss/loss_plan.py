"""The plan that `flowcheck plan-loss` prints: made of the options, and of a model or job file. Pure
but for loading the model."""

from __future__ import annotations

import math

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import (
    COPIES_INDEPENDENT,
    FOREIGN_LOSS,
    HEALED_BY_HOOK,
    HEALED_WHOLE,
    ONE_ALL_REDUCE,
    PACKETS_INDEPENDENT,
    PARTIAL_SUMS_FREE,
    SEVERAL_RINGS,
    STOPS_AT_LOSS,
    TAINT_UNTIL_HEALED,
    WAITS_AT_LOSS,
)
from flowcheck.findings.catalog.plan_figures import ONE_CHANNEL, PROTOCOL_BY_SIZE
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.findings.finding import Finding
from flowcheck.ops.packet_loss.copy_loss import HopLosses, LossProcess
from flowcheck.ops.packet_loss.loss_odds import StepOdds, at_least_once, step_odds
from flowcheck.ops.packet_loss.replica_odds import (
    Healing,
    healing_of_day,
    kept_share,
    steps_of_day,
    steps_until,
    stopped_share,
)
from flowcheck.ops.packet_loss.ring_overflow import RingBurst
from flowcheck.ops.packet_loss.step_packets import Coverage, StepPackets
from flowcheck.ops.planning.wire_traffic import LL_BELOW_BYTES, MirroredPort

PROTOTYPE_LOSS = 1e-9
"""Share of copies lost on the mirror link, as the published prototype measured it: the default of
--switch-loss."""
MOST_RINGS = 65_536
"""Rings of a job. A choice that stops slips of the pen."""


class LossSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that the figures are made of. Construction raises ConfigError that names the option of an
    invalid value."""

    hops: HopLosses
    measured: bool
    """Whether the loss of the mirror queue was stated; False: it is PROTOTYPE_LOSS."""
    burst_packets: float
    coverage: Coverage
    rings: int
    step_s: float
    healing: Healing | None
    """The trainer's checkpoint files and its hook; None: nothing said how often it writes files,
    and there is no hook."""
    heals: bool
    """Whether healing under rules that step each element by itself is planned as well."""
    state_bytes: float
    """Bytes that a replica holds for each element: parameter and optimizer states."""
    clip_norm: bool
    """Whether the trainer clips by the norm of all gradients."""
    burst: RingBurst | None

    def __post_init__(self) -> None:
        if not 1 <= self.rings <= MOST_RINGS:
            raise ConfigError("--rings", self.rings, FROM_TO(least=1, most=MOST_RINGS))
        if not 1 <= self.state_bytes <= 1024:
            raise ConfigError("--state-bytes", self.state_bytes, FROM_TO(least=1, most=1024))

    @property
    def taints(self) -> bool:
        """Whether the plan is also of a replica that goes on with tainted elements: not by a norm
        of all gradients."""
        return self.heals and not self.clip_norm


class WholeRulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """By a rule over all gradients at once: another copy repairs, else the replica stops before the
    step, until it has the trainer's next checkpoint."""

    repair_day: float
    """Probability of one repaired step or more in a day."""
    stop_day: float
    steps_until_stop: float | None
    """Expected; None: it never stops."""
    exact_share: float
    """Expected share of the steps of the first day that the replica has without any checkpoint."""
    wait_steps: float | None
    """Mean steps from a lost one until the replica has taken the trainer's next checkpoint; None:
    nothing said how often it writes them."""
    most_wait_steps: int | None
    kept_share: float | None
    """Expected share of all steps that the replica has, with those checkpoints; each is exact."""


class TaintPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Of a replica that goes on with elements that are not exact, until something heals them."""

    taint_day: float
    lost_packets: float
    """Mean number of packets lost in all copies, of a step that loses any."""
    elements: float
    """Mean number of elements not exact after such a step."""
    bytes: float
    """Bytes of the replica in them."""
    exact_share: float
    steps_until_taint: float | None
    """Expected; None: never."""
    wait_steps: float
    most_wait_steps: int
    checkpoint_step: float
    """Probability per step that a checkpoint heals something."""
    checkpoint_day: float
    checkpoints_day: float
    """Expected number of checkpoints a day that heal something."""
    hook_step: float
    """Probability per step that it is lost and a hook heals it, before a checkpoint does."""
    hook_day: float
    hooks_day: float
    """Expected number of lost steps a day that a hook heals."""


class MirrorOdds(msgspec.Struct, frozen=True, kw_only=True):
    """The same job under one number of mirrors."""

    coverage: Coverage
    odds: StepOdds
    whole_rule: WholeRulePlan
    taint: TaintPlan | None


class LossPlan(msgspec.Struct, frozen=True, kw_only=True):
    packets: StepPackets
    wire: MirroredPort
    settings: LossSettings
    copy_loss: float
    steps_day: int
    chosen: MirrorOdds
    others: tuple[MirrorOdds, ...]
    """Other numbers of mirrors, to compare."""
    assumed: tuple[Finding, ...]


def make_loss_plan(
    packets: StepPackets, wire: MirroredPort, settings: LossSettings, *, of_model: bool
) -> LossPlan:
    """of_model: the gradient buckets are those of a model."""
    loss = settings.hops.of_copy(wire.pmtu_bytes)
    return LossPlan(
        packets=packets,
        wire=wire,
        settings=settings,
        copy_loss=loss,
        steps_day=steps_of_day(settings.step_s),
        chosen=plan_with(packets, settings, settings.coverage, loss),
        others=tuple(
            plan_with(packets, settings, coverage, loss)
            for coverage in coverages(wire.ranks)
            if coverage != settings.coverage
        ),
        assumed=tuple(_assumed(settings, wire, of_model)),
    )


def coverages(ranks: int) -> list[Coverage]:
    """What a plan compares: one copy of each chunk, two and three links of the ring, two copies."""
    found = [Coverage(ranks=ranks, copies=1), Coverage(ranks=ranks, links=2)]
    found += [Coverage(ranks=ranks, links=3)] if ranks > 2 else []
    return [*found, Coverage(ranks=ranks, copies=2)]


def plan_with(
    packets: StepPackets, settings: LossSettings, coverage: Coverage, loss: float
) -> MirrorOdds:
    """loss: probability that one copy of a packet is lost."""
    process = LossProcess(loss=loss, burst_packets=settings.burst_packets)
    odds = step_odds(packets, coverage, process, settings.rings)
    return MirrorOdds(
        coverage=coverage,
        odds=odds,
        whole_rule=_whole_rule(odds, settings),
        taint=_taint(odds, settings, packets) if settings.taints else None,
    )


def certain(probability: float) -> float:
    """Below 1 by the least there is, where logarithms are taken."""
    return min(probability, math.nextafter(1.0, 0.0))


def _whole_rule(odds: StepOdds, settings: LossSettings) -> WholeRulePlan:
    steps, lost = steps_of_day(settings.step_s), certain(odds.unrepaired)
    # Values of elements are no help where a norm is not known.
    files = None if settings.healing is None else settings.healing.without_hook()
    until = steps_until(lost)
    every = None if files is None else files.checkpoint_every
    return WholeRulePlan(
        repair_day=at_least_once(odds.repaired, steps),
        stop_day=at_least_once(lost, steps),
        steps_until_stop=until if math.isfinite(until) else None,
        exact_share=1 - stopped_share(lost, steps),
        wait_steps=None if files is None else files.mean_wait_steps(),
        most_wait_steps=None if files is None else files.most_wait_steps,
        kept_share=None if every is None else kept_share(lost, every),
    )


def _taint(odds: StepOdds, settings: LossSettings, packets: StepPackets) -> TaintPlan:
    healing, lost = settings.healing, certain(odds.unrepaired)
    assert healing is not None
    steps, until = steps_of_day(settings.step_s), steps_until(lost)
    each = odds.lost_packets / lost if lost else 0.0
    elements = each * packets.elements_per_packet
    healed, at_all = healing_of_day(healing, lost, steps)
    hooked, answered = healing.hooked_steps(steps), lost * healing.hook_success
    return TaintPlan(
        taint_day=at_least_once(lost, steps),
        lost_packets=each,
        elements=elements,
        bytes=elements * settings.state_bytes,
        exact_share=1 - healing.tainted_share(lost),
        steps_until_taint=until if math.isfinite(until) else None,
        wait_steps=healing.mean_wait_steps(),
        most_wait_steps=healing.most_wait_steps,
        checkpoint_step=healing.checkpoint_heals(lost) / (healing.checkpoint_every or 1),
        checkpoint_day=at_all,
        checkpoints_day=healed,
        hook_step=healing.hook_heals(lost),
        hook_day=at_least_once(answered, hooked),
        hooks_day=answered * hooked,
    )


def _assumed(settings: LossSettings, wire: MirroredPort, of_model: bool) -> list[Finding]:
    told = [] if settings.measured else [FOREIGN_LOSS(PROTOTYPE_LOSS)]
    told += [COPIES_INDEPENDENT(), PARTIAL_SUMS_FREE()]
    told += [PACKETS_INDEPENDENT()] if settings.burst_packets == 1 else []
    told += [] if of_model else [ONE_ALL_REDUCE()]
    told += [PROTOCOL_BY_SIZE(LL_BELOW_BYTES)] if wire.protocol is None else []
    told += [ONE_CHANNEL()] if wire.channels == 1 else []
    told += [SEVERAL_RINGS(settings.rings)] if settings.rings > 1 else []
    if settings.taints and settings.healing is not None:
        by_file = settings.healing.checkpoint_every is not None
        told += [TAINT_UNTIL_HEALED(), HEALED_WHOLE()] if by_file else [HEALED_BY_HOOK()]
    else:
        told.append(WAITS_AT_LOSS() if settings.clip_norm else STOPS_AT_LOSS())
    return told
