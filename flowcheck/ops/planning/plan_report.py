"""Prints a traffic plan as tables, or returns it as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table

from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.planning.memory_estimate import MemoryEstimate, memory_json
from flowcheck.ops.planning.meta_device_model import MetaModel
from flowcheck.ops.planning.plan_vs_captures import CheckResult
from flowcheck.ops.planning.wire_traffic import (
    CollectiveTraffic,
    MirroredPort,
    PortTraffic,
    total_traffic,
)

MOST_ROWS = 12
"""Collectives per section that the table lists one by one; where there are more, collectives of
one kind are added up. A choice of layout."""

WIDTH_LEAST = 100
"""Minimal table width, columns: on a narrower terminal lines wrap, and no number is truncated."""
MESSAGES_WIDTH = 9
"""Characters that the column with the message counts of both directions has; where they do not
fit, the larger count is shown. A choice of layout."""


class TrafficPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that `flowcheck plan` prints."""

    model: MetaModel
    wire: MirroredPort
    start_up: tuple[CollectiveTraffic, ...]
    first: tuple[tuple[CollectiveTraffic, ...], ...]
    """Collectives of the iterations that differ from the later ones, from iteration 0 on."""
    each: tuple[CollectiveTraffic, ...]
    iterations_per_step: int
    memory: MemoryEstimate
    assumed: tuple[Finding, ...]
    advice: tuple[Finding, ...] = ()
    """Settings that the job file needs for this job."""

    @property
    def parts(self) -> Iterator[tuple[str, tuple[CollectiveTraffic, ...]]]:
        """(title, collectives) of each section of the report."""
        yield "Start-up", self.start_up
        for number, costs in enumerate(self.first):
            yield f"Iteration {number}", costs
        yield ("Every later iteration" if self.first else "Every iteration"), self.each

    @property
    def step(self) -> tuple[PortTraffic, PortTraffic]:
        """Traffic of one optimizer step as (out, in), once all iterations are alike."""
        out, into = total_traffic(self.each)
        return out.times(self.iterations_per_step), into.times(self.iterations_per_step)


def as_dict(plan: TrafficPlan, found: CheckResult | None) -> dict[str, Any]:
    """The plan for JSON. All sizes are bytes. found: result of the comparison with captures; None:
    no captures were given."""
    out, into = plan.step
    told: dict[str, Any] = msgspec.to_builtins(plan)
    told["start_up"] = _collectives(plan.start_up)
    told["first"] = [_collectives(part) for part in plan.first]
    told["each"] = _collectives(plan.each)
    told["memory"]["parts"] = memory_json(plan.memory.parts)
    told["step"] = {"out": _direction(out), "in": _direction(into)}
    told["memory"]["bytes"] = plan.memory.bytes
    told["memory"]["bytes_per_parameter"] = plan.memory.per_parameter
    told["check"] = None if found is None else msgspec.to_builtins(found)
    return told


def _collectives(costs: Sequence[CollectiveTraffic]) -> list[dict[str, Any]]:
    """With the words of each beside its role."""
    told: list[dict[str, Any]] = msgspec.to_builtins(costs)
    for one, cost in zip(told, costs, strict=True):
        one["planned"]["what"] = cost.planned.what
    return told


def _direction(one: PortTraffic) -> dict[str, int]:
    values: dict[str, int] = msgspec.to_builtins(one)
    return values | {"frame_bytes": one.frame_bytes}


def print_plan(
    plan: TrafficPlan, found: CheckResult | None, console: SentenceConsole | None = None
) -> None:
    """Prints model, collectives, totals and memory, then the assumptions and the comparison with
    captures. console: None: stdout."""
    out = console or SentenceConsole(highlight=False)
    if console is None:
        out.width = max(out.width, WIDTH_LEAST)
    out.print(f"[bold]{escape(plan.model.name)}[/]: {_model(plan.model)}", soft_wrap=True)
    out.print(_traffic(plan))
    out.print(_step(plan), soft_wrap=True)
    out.print(memory_table(plan.memory))
    for assumed in plan.assumed:
        out.print_finding(assumed, "- assumed: ")
    for advice in plan.advice:
        out.print_finding(advice, "- ")
    if found is not None:
        for sentence in comparison_sentences(found):
            out.print(sentence, soft_wrap=True, markup=False)


def _model(model: MetaModel) -> str:
    trained, frozen = model.trained, len(model.tensors) - len(model.trained)
    elements = sum(tensor.wire.elements for tensor in trained)
    size = sum(tensor.wire.nbytes for tensor in trained)
    kinds = ", ".join(dict.fromkeys(tensor.wire.dtype or "?" for tensor in trained))
    untrained = [f"{frozen} frozen parameters"] if frozen else []
    untrained += [f"{len(model.buffers)} buffers"] if model.buffers else []
    return ", ".join(
        [f"{len(trained)} parameters, {elements:,} elements, {size:,} bytes of {kinds}", *untrained]
    )


def _traffic(plan: TrafficPlan) -> Table:
    wire = plan.wire
    own = f"ring index {wire.ring_index}"
    if wire.gpus > 1:
        own = f"a node of {wire.gpus} GPUs, ring index {wire.ring_index} to {wire.last_index},"
    table = Table(
        title=f"On the port of {own} of {wire.ranks} ranks (/2: 2 messages)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("what", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("how", no_wrap=True)
    table.add_column("loops x chunk", justify="right", no_wrap=True)
    for heading in ("msgs", "out", "in"):
        table.add_column(heading, justify="right", no_wrap=True)
    for title, costs in plan.parts:
        table.add_section()
        out, into = total_traffic(costs)
        size = sum(cost.planned.work_bytes for cost in costs)
        told = _messages(out, into)
        row = (
            f"[bold]{title}[/]",
            f"{size:,}",
            "",
            "",
            told,
            decimal_size(out.bytes),
            decimal_size(into.bytes),
        )
        table.add_row(*row)
        listed = costs if len(costs) <= MOST_ROWS else costs[: MOST_ROWS - 1]
        for cost in listed:
            table.add_row(*_row(cost))
        if len(listed) < len(costs):
            table.add_row(f"  ... {len(costs) - len(listed)} more")
    return table


def _row(cost: CollectiveTraffic) -> Sequence[str]:
    planned = cost.planned
    slices = "" if cost.slices == 1 else f" /{cost.slices}"
    return (
        f"  {planned.what}",
        f"{planned.work_bytes:,}",
        f"{cost.protocol} {cost.channels}ch",
        f"{cost.loops} x {decimal_size(cost.chunk_bytes)}{slices}",
        _messages(cost.out, cost.into),
        decimal_size(cost.out.bytes),
        decimal_size(cost.into.bytes),
    )


def decimal_size(size: int) -> str:
    """A size in bytes as text with a decimal unit (kB, MB, GB), rounded."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            value = size / 1000**power
            return f"{value:.{1 if value < 100 else 0}f} {unit}"
    return f"{size} B"


def _messages(out: PortTraffic, into: PortTraffic) -> str:
    """Of both directions, where these differ and there is room."""
    both = f"{out.messages:,}/{into.messages:,}"
    alike = out.messages == into.messages or len(both) > MESSAGES_WIDTH
    return f"{max(out.messages, into.messages):,}" if alike else both


def _step(plan: TrafficPlan) -> str:
    each = [f"{decimal_size(one.frame_bytes)} {way}" for way, one in _ways(plan)]
    frames = sum(one.frames for _, one in _ways(plan))
    return (
        f"[bold]Mirrored per step[/]: {' and '.join(each)}, headers included, in {frames:,} "
        "frames; acknowledgements and clear-to-send come on top"
    )


def _ways(plan: TrafficPlan) -> list[tuple[str, PortTraffic]]:
    out, into = plan.step
    return [("out of the port's host", out), ("into it", into)]


def memory_table(memory: MemoryEstimate) -> Table:
    """The memory estimate as a table: its lines and their sum."""
    table = Table(
        title="Memory of the machine with FlowCheck",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("for")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("why")
    for part in memory.parts:
        table.add_row(part.what, f"{part.bytes:,}", str(part.why))
    table.add_section()
    table.add_row("[bold]all[/]", f"{memory.bytes:,}", f"{memory.bytes / 2**30:.2f} GiB")
    each = f"of a step, for each of {memory.parameters:,} parameters"
    table.add_row("per parameter", f"{memory.per_parameter:.4g}", each)
    return table


def comparison_sentences(found: CheckResult) -> list[str]:
    """The result of the comparison with captures as sentences."""
    start = (
        ("the start-up and " if found.difference is None else "")
        if found.from_start
        else "no start-up was captured; "
    )
    begun = "as planned: " if found.difference is None else "as planned up to there: "
    held = f"{begun}{_count(found.matching, 'collective')}, {start}"
    held += _count(found.iterations, "whole iteration")
    told = [held] if found.difference is None else [f"DIFFERS: {found.difference}", held]
    if found.order_told:
        told.append("the order of gradients is that of the captures' own bucket plan")
    if found.own_collectives:
        listed = ", ".join(f"{times} x {what}" for what, times in found.own_collectives)
        told.append(f"beside the plan, the script's own: {listed}")
    return told


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
