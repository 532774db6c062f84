"""Prints a plan of packet loss as tables, or returns it as JSON values."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.packet_loss.loss_plan import LossPlan, MirrorOdds, TaintPlan
from flowcheck.ops.packet_loss.loss_simulation import CONFIDENCE, Compared
from flowcheck.ops.packet_loss.ring_overflow import RingBurst
from flowcheck.ops.packet_loss.step_packets import Coverage
from flowcheck.ops.planning.plan_report import WIDTH_LEAST, decimal_size

UNITS = ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"))


def as_dict(plan: LossPlan, found: tuple[Compared, ...]) -> dict[str, Any]:
    """The plan for JSON: sizes in bytes, times in seconds or steps, probabilities as they are.
    found: the simulation; empty: none was asked for."""
    told: dict[str, Any] = msgspec.to_builtins(plan)
    burst = plan.settings.burst
    told["packets"] |= {
        "packets": plan.packets.packets,
        "elements_per_packet": plan.packets.elements_per_packet,
    }
    told["ring"] = None if burst is None else _burst_values(burst)
    told["simulation"] = [msgspec.to_builtins(one) | {"agrees": one.agrees} for one in found]
    return told


def _burst_values(burst: RingBurst) -> dict[str, Any]:
    return {
        "burst_frames": burst.frames,
        "slots_needed": burst.slots_for(burst.frames),
        "lost_frames": burst.lost_frames,
        "most_burst_bytes": burst.most_burst_bytes,
    }


def print_loss_plan(plan: LossPlan, found: tuple[Compared, ...]) -> None:
    out = SentenceConsole(highlight=False)
    out.width = max(out.width, WIDTH_LEAST)
    for line in _head(plan):
        out.print(line, soft_wrap=True, markup=False)
    out.print(_whole_rule(plan))
    out.print(_first_stop(plan), soft_wrap=True, markup=False)
    out.print(_mirrors(plan))
    if plan.chosen.taint is not None:
        out.print(_taint(plan, plan.chosen.taint))
    if plan.settings.burst is not None:
        out.print(_burst(plan.settings.burst), soft_wrap=True, markup=False)
    if found:
        out.print(_simulated(found))
    for assumed in plan.assumed:
        out.print_finding(assumed, "- assumed: ")


def _head(plan: LossPlan) -> list[str]:
    packets, wire, hops = plan.packets, plan.wire, plan.settings.hops
    parts = (
        ("mirror queue", hops.switch),
        ("link", hops.of_link(wire.pmtu_bytes)),
        ("NIC", hops.nic),
        ("ring", hops.ring),
    )
    lost = ", ".join(f"{name} {value:.3g}" for name, value in parts if value) or "no hop loses any"
    rows = f"; lost in a row: {plan.settings.burst_packets:g} on average"
    return [
        f"A step: {packets.elements:,} gradient elements in {packets.packets:,} packets with "
        f"finished sums, {packets.elements_per_packet:,.0f} elements each, in a ring of "
        f"{wire.ranks} ranks",
        f"Mirrored: {coverage_words(plan.settings.coverage)}",
        f"A copy is lost with probability {plan.copy_loss:.4g}: {lost}"
        + (rows if plan.settings.burst_packets > 1 else ""),
    ]


def coverage_words(coverage: Coverage) -> str:
    """Which copies there are, for people."""
    links, ranks = coverage.links, coverage.ranks
    if links is None:
        return f"every chunk {_times(coverage.copies)}"
    rest = f", {ranks - links} {_times(links)}" if ranks > links else ""
    both = " (or both directions of one)" if links == 2 else ""
    return f"{links} links{both}: of {ranks} chunks {links} seen {_times(links - 1)}{rest}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=bool(number))
    return table


def _whole_rule(plan: LossPlan) -> Table:
    odds, rule, steps = plan.chosen.odds, plan.chosen.whole_rule, plan.steps_day
    table = _table(
        "By a rule over all gradients at once",
        "probability of",
        "a step",
        f"a day of {steps:,} steps",
        "such steps a day",
    )
    rows = (
        ("repair: copies lost, another mirror has each packet", odds.repaired, rule.repair_day),
        ("stop: a packet lost in all copies", odds.unrepaired, rule.stop_day),
    )
    for what, step, day in rows:
        table.add_row(what, f"{step:.4g}", f"{day:.4g}", f"{step * steps:.4g}")
    return table


def _first_stop(plan: LossPlan) -> str:
    rule, step_s = plan.chosen.whole_rule, plan.settings.step_s
    if rule.steps_until_stop is None:
        return "The replica never stops for a lost packet."
    told = (
        f"The replica stops before the first step it cannot rebuild: after "
        f"{duration(rule.steps_until_stop * step_s)} on average ({rule.steps_until_stop:.4g} "
        f"steps). Without a checkpoint it has {share(rule.exact_share)} of the first day's steps."
    )
    if rule.wait_steps is None or rule.most_wait_steps is None or rule.kept_share is None:
        return told
    return told + (
        " The trainer's next checkpoint (`[audit] folder`, or `flowcheck base`) makes it go on, "
        f"{rule.wait_steps:g} steps ({duration(rule.wait_steps * step_s)}) behind the stop on "
        f"average, {rule.most_wait_steps:,} at most, if the gradient log has room for as many: so "
        f"it has {share(rule.kept_share)} of all steps, each of them exact."
    )


def _mirrors(plan: LossPlan) -> Table:
    table = _table("The same job, mirrored in other ways", "mirrored", "stop a step", "stop a day")
    table.add_column("first stop after", justify="right", no_wrap=True)
    for one in (plan.chosen, *plan.others):
        table.add_row(*_mirror_row(one, plan.settings.step_s))
    return table


def _mirror_row(one: MirrorOdds, step_s: float) -> tuple[str, str, str, str]:
    until = one.whole_rule.steps_until_stop
    return (
        coverage_words(one.coverage),
        f"{one.odds.unrepaired:.4g}",
        f"{one.whole_rule.stop_day:.4g}",
        "never" if until is None else duration(until * step_s),
    )


def _taint(plan: LossPlan, taint: TaintPlan) -> Table:
    healing, step_s = plan.settings.healing, plan.settings.step_s
    assert healing is not None
    table = _table(
        "By a rule that steps each element by itself: lost elements are tainted until healed",
        "probability of",
        "a step",
        "a day",
        "times a day",
    )
    lost = plan.chosen.odds.unrepaired
    rows = [("taint begins, or grows", lost, taint.taint_day, lost * plan.steps_day)]
    if healing.hook_delay is not None:
        hooked = "healed by a hook that is asked for the tainted ranges"
        rows.append((hooked, taint.hook_step, taint.hook_day, taint.hooks_day))
    if healing.checkpoint_every is not None:
        by_file = f"healed by a checkpoint file, every {healing.checkpoint_every:,} steps"
        odds = taint.checkpoint_step, taint.checkpoint_day, taint.checkpoints_day
        rows.append((by_file, *odds))
    for what, step, day, times in rows:
        table.add_row(what, f"{step:.4g}", f"{day:.4g}", f"{times:.4g}")
    table.add_section()
    facts = (
        ("packets lost, of a step that loses any", f"{taint.lost_packets:.4g}"),
        ("elements tainted by it (they stay there)", f"{taint.elements:,.4g}"),
        ("bytes of the replica in them", decimal_size(round(taint.bytes))),
        ("share of steps that are exact", share(taint.exact_share)),
        (
            "first taint after, on average",
            "never"
            if taint.steps_until_taint is None
            else duration(taint.steps_until_taint * step_s),
        ),
        ("a loss stays tainted, on average", duration(taint.wait_steps * step_s)),
        ("and at most", duration(taint.most_wait_steps * step_s)),
    )
    for what, value in facts:
        table.add_row(what, value)
    return table


def _burst(burst: RingBurst) -> str:
    """A bound, and no probability."""
    most = burst.most_burst_bytes
    limit = "any burst fits" if most is None else f"a burst of {decimal_size(most)} just fits"
    told = (
        f"Ring of {burst.slots:,} slots, {burst.line_gbps:g} Gb/s in, {burst.drain_gbps:g} Gb/s "
        f"out (a bound, not a probability): {limit}; this one, of {burst.frames:,} frames, needs "
        f"{burst.slots_for(burst.frames):,} slots"
    )
    if not burst.lost_frames:
        return f"{told} and fits."
    return f"{told}: it OVERFLOWS the ring by {burst.lost_frames:,} frames, each time."


def _simulated(found: tuple[Compared, ...]) -> Table:
    table = _table(
        f"Simulated, with intervals of {CONFIDENCE:.2%} confidence",
        "probability of",
        "planned",
        "seen",
        "interval",
    )
    table.add_column("", no_wrap=True)
    for one in found:
        table.add_row(
            one.what,
            f"{one.planned:.4g}",
            f"{one.seen:,} of {one.samples:,}",
            f"{one.low:.4g} to {one.high:.4g}",
            "agrees" if one.agrees else "DIFFERS",
        )
    return table


def duration(seconds: float) -> str:
    """A time as text, in the unit that leaves few digits."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def share(value: float) -> str:
    """A share near 1 with as many nines as tell it from 1."""
    missing = 1 - value
    if missing <= 0 or value <= 0:
        return f"{value:.0%}"
    digits = max(1, 1 - math.floor(math.log10(missing)) - 2 + 1)
    return f"{100 * value:.{min(digits, 13)}f} %"
