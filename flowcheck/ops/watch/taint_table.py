"""The table of a model's tainted tensors, for every command that tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import SentenceConsole, print_line, printable
from flowcheck.ops.watch.terminal_tables import PIPED_CELLS
from flowcheck.replica.model_taint import ModelTaint, TaintedTensor, exact_finding

RANGES_SHOWN = 3
"""Most ranges of a tensor in a row. A choice of layout; the JSON forms have more."""
TENSORS_SHOWN = 20
"""Most rows, those with the most tainted elements. A choice of layout."""


def print_tainted_models(models: Sequence[ModelTaint]) -> None:
    """Of each model that has tainted elements."""
    console = SentenceConsole(highlight=False)
    if not console.is_terminal:
        console = SentenceConsole(highlight=False, width=PIPED_CELLS)
    for model in models:
        if (found := sentence_of(model)) is not None:
            print_line(str(found))
            if found.remedy:
                print_line(f"  {found.remedy}")
            console.print(taint_table(model))


def sentence_of(model: ModelTaint) -> Finding | None:
    """What is said above the table; None: nothing is tainted. Of a job that is a model by itself
    its own lines say the rest."""
    return model.told if len(model.jobs) > 1 or model.told is None else exact_finding(model)


def taint_table(model: ModelTaint) -> Table:
    """A row for each tensor, and one with the sums."""
    table = Table(
        "job", "tensor", "tainted", "of", "of the model", "since step", "elements",
        box=None, pad_edge=False,
    )  # fmt: skip
    for column in table.columns[2:6]:
        column.justify = "right"
    table.columns[1].overflow = "fold"
    shown = sorted(model.tensors, key=lambda one: -one.tainted_elements)[:TENSORS_SHOWN]
    for one in (one for one in model.tensors if one in shown):
        table.add_row(*_row(one))
    if left := len(model.tensors) - len(shown) + model.tensors_left_out:
        table.add_row("", f"and {left} more tensors")
    whole = "-" if model.all_elements is None else f"{model.all_elements:,}"
    told = f"{model.tainted_elements:,}", whole, _percent(model.percent), _step(model.since)
    table.add_row("all", "", *told, "")
    return table


def _row(one: TaintedTensor) -> Iterator[str | Text]:
    yield Text(printable(one.job))
    yield Text(printable(one.parameter))
    yield f"{one.tainted_elements:,}"
    yield "-" if one.all_elements is None else f"{one.all_elements:,}"
    yield _percent(one.model_percent)
    yield _step(one.since)
    ranges = [f"{of.start}-{of.stop - 1}" for of in one.ranges[:RANGES_SHOWN]]
    left = len(one.ranges) - len(ranges) + one.ranges_left_out
    yield ", ".join(ranges) + (f" and {left} more ranges" if left else "")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:g} %"


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)
