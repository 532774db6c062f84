"""What a replay came to, of each job it followed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from flowcheck.messages import StepLost
from flowcheck.ops.giving.together import steps_to_keep, write_index
from flowcheck.ops.running.last import last_step
from flowcheck.ops.running.progress import lost_sentence
from flowcheck.ops.running.saved import Save, saving
from flowcheck.plane.ring import Ring
from flowcheck.stages.bounded import whole_lines
from flowcheck.stages.chain.heard import Progress
from flowcheck.stages.chain.supervisor import Supervisor
from flowcheck.stages.jobs import folder_of
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.assumed import assumed
from flowcheck.step_numbers import Step

INTERRUPTED = "stopped by a signal before the end of the capture"


@dataclass(frozen=True, slots=True)
class Replayed:
    """How the chain ended."""

    out: Path | None
    """Where checkpoints go."""
    frames: int
    """Of all files."""
    stopped: bool
    """By a signal."""

    def of(self, supervisor: Supervisor) -> dict[str, Any]:
        """What came of the job, and under `beside` of each further one on the same ports."""
        watched = (supervisor, *supervisor.beside)
        runs = [one.run for one in watched]
        step, why = steps_to_keep(runs[0].settings(), runs)
        with saving(supervisor.lender) as save:
            first, *beside = [self._of(one.run, one.progress, step, save) for one in watched]
        if self.out is not None and beside:
            saved = [one["checkpoint"] for one in (first, *beside)]
            write_index(self.out, supervisor.run, [path and Path(path) for path in saved], step)
        return first | {"beside": beside, "notes": [*first["notes"], *([why] if why else [])]}

    def _of(
        self, where: RunDir, progress: Progress, step: Step | None, save: Save
    ) -> dict[str, Any]:
        config = where.settings()
        captured = 0
        for number in range(len(config.rings)):
            with Ring.open(where.ring(number)) as ring:
                captured += ring.counters()["capture"]["rx_frames"]
        steps = [msgspec.json.decode(line) for line in whole_lines(where.steps)]
        last = last_step(where) or {"step": 0, "digest": None}
        out = self.out
        if out is not None and config.several:
            out /= folder_of(config, where.reader + 1)
        saved = save(config, where, out, step) if out is not None else None
        interrupted = self.stopped and (captured < self.frames or progress.complete_steps is None)
        lost = progress.lost
        return {
            "frames": self.frames,
            "captured_frames": captured,
            "steps": last["step"],
            "complete_steps": progress.complete_steps or 0,
            "digest": last["digest"],
            "digests": steps if config.digests else [],
            "lost": msgspec.to_builtins(lost) if lost else None,
            "why": INTERRUPTED if interrupted else progress.why,
            "interrupted": interrupted,
            "notes": list(progress.notes),
            "restarts": progress.restarts,
            "assumed": list(assumed(where)),
            "checkpoint": str(saved) if saved else None,
        }


def whole(result: dict[str, Any]) -> bool:
    """Every step of the stream is in the replica and none was lost."""
    taken = result["steps"] and result["steps"] == result["complete_steps"]
    return bool(taken and not result["why"] and not result["lost"] and not result["interrupted"])


def show(result: dict[str, Any], notes: Console) -> None:
    """For people; notes: where what is beside the result goes."""
    out = Console()
    for sentence in result["notes"]:
        notes.print(sentence, markup=False)
    for number, one in enumerate((result, *result["beside"]), 1):
        if result["beside"]:
            out.print(f"job {number}:", highlight=False)
        _show(one, out, notes)


def _show(result: dict[str, Any], out: Console, notes: Console) -> None:
    for line in result["digests"]:
        out.print(
            f"step {line['step']:>4}  gradient {line['gradient_sha256']}  "
            f"parameters {line['parameters_sha256']}",
            highlight=False,
            soft_wrap=True,
        )
    for sentence in result["assumed"]:
        notes.print(f"[yellow]assumed[/] {escape(sentence)}")
    if result["lost"]:
        out.print(f"[red]{escape(lost_sentence(msgspec.convert(result['lost'], StepLost)))}[/]")
    elif result["why"]:
        out.print(result["why"], markup=False)
    out.print(
        f"{result['captured_frames']:,} frames, {result['steps']:,} steps taken, "
        f"state digest {result['digest'] or 'none: no state was made'}",
        highlight=False,
        soft_wrap=True,
    )
    if result["checkpoint"]:
        out.print(f"checkpoint {result['checkpoint']}", highlight=False, soft_wrap=True)
