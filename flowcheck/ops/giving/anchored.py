"""Where a file of the trainer's took the place of a replica's step, for `flowcheck status`."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.anchors import anchor_lines

SHOWN = 3


def read(where: RunDir) -> list[dict[str, Any]]:
    """Every file that was given to take a step's place, the oldest first; `refused` is empty of
    those that did."""
    return [
        {"step": one.step, "file": one.file, "at": one.at, "refused": one.refused}
        for one in anchor_lines(where)
    ]


def sentences(anchors: list[dict[str, Any]]) -> list[str]:
    """For people: the newest that took a step's place."""
    taken = [one for one in anchors if not one["refused"]]
    more = [f"  and {len(taken) - SHOWN} files before"] if len(taken) > SHOWN else []
    return [
        f"step {one['step']} is the trainer's {escape(one['file'])}, which took its place when "
        f"the replica was at step {one['at']}"
        for one in taken[: -SHOWN - 1 : -1]
    ] + more
