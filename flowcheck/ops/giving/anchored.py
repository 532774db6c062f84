"""Where a file of the trainer's took the place of a replica's step, for `flowcheck status`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from flowcheck.ops.watch.parts.job import Anchor


def sentences(anchors: Sequence[Anchor], before: int) -> list[str]:
    """For people. anchors: the newest that took a step's place, ascending; before: how many more
    there were."""
    more = [f"  and {before} files before"] if before else []
    return [
        f"step {one.step} is the trainer's {escape(one.file)}, which took its place when "
        f"the replica was at step {one.at}"
        for one in reversed(anchors)
    ] + more
