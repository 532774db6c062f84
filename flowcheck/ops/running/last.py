"""How far the replica of a run came, by its records."""

from __future__ import annotations

import msgspec

from flowcheck.stages.bounded import last_line
from flowcheck.stages.chain.beat import read_beat
from flowcheck.stages.rundir import RunDir


def last_step(run: RunDir) -> dict[str, object] | None:
    """The last whole line of steps.jsonl; where lines found no room, what the beat knows."""
    beat = read_beat(run.beat)
    if beat is not None and beat.unwritten_lines and beat.taken:
        return {"step": beat.taken, "digest": beat.digest}
    line = last_line(run.steps)
    return None if line is None else msgspec.json.decode(line)
