"""The result of a replay, for each job: steps, digests, losses, checkpoint; as JSON and as
text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape

from flowcheck.findings.catalog.how_chains_end import INTERRUPTED
from flowcheck.findings.catalog.starting_a_chain import RUN_NOT_KEPT
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import name_run_to_keep
from flowcheck.messages import StepLost
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.lifecycle.common_step_of_jobs import common_step_to_keep, write_index
from flowcheck.ops.lifecycle.progress_messages import lost_step_finding
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.ops.lifecycle.shutdown_checkpoint import SaveFunction, checkpoint_writer
from flowcheck.ops.watch.state.chain_state import JobEnd
from flowcheck.ops.watch.state.shutdown_record import path_to_record
from flowcheck.ops.watch.state.taint_of_models import record_taint, tainted_models
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.run_directory.bounded_log_files import complete_lines
from flowcheck.stages.run_directory.job_run_dirs import job_folder_name
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.stages.supervisor.supervisor import Supervisor
from flowcheck.step_numbers import Step

SHA256_DIGITS = 64
"""Hexadecimal digits of a SHA-256."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Builds the result of a replay from its chain after its end."""

    out: Path | None
    """Folder for checkpoints; None: none are written."""
    frames: int
    """Frames in all capture files."""
    stopped: bool
    """True: a signal ended the replay."""

    def collect(self, supervisor: Supervisor) -> dict[str, Any]:
        """The result of the first job as JSON values, with the results of further jobs on the same
        ports under "beside". Writes the checkpoints. Raises StateError or OSError where a
        checkpoint cannot be written."""
        watched = (supervisor, *supervisor.other_jobs)
        runs = [one.run for one in watched]
        step, why = common_step_to_keep(runs[0].settings(), runs)
        record_taint(runs[0])
        models = tainted_models(runs[0])  # before a replica goes back to the common step
        with checkpoint_writer(supervisor.checkpoint_helper) as save:
            first, *further = [self._of(one.run, one.progress, step, save) for one in watched]
        if self.out is not None and further:
            saved = [one["checkpoint"] for one in (first, *further)]
            write_index(self.out, supervisor.run, [path and Path(path) for path in saved], step)
        return first | {
            "beside": further,
            "tainted_models": models,
            "notes": [*first["notes"], *([why] if why is not None else [])],
        }

    def _of(
        self, where: RunDir, progress: ChainProgress, step: Step | None, save: SaveFunction
    ) -> dict[str, Any]:
        config = where.settings()
        captured = 0
        for number in range(len(config.rings)):
            with FrameRing.open(where.ring(number)) as ring:
                captured += ring.counters()["capture"]["rx_frames"]
        steps = [msgspec.json.decode(line) for line in complete_lines(where.steps)]
        last = last_step(where) or {"step": 0, "digest": None}
        out = self.out
        if out is not None and config.several:
            out /= job_folder_name(config, where.reader + 1)
        saved = save(config, where, out, step) if out is not None else None
        taint = last.get("taint")
        interrupted = self.stopped and (captured < self.frames or progress.complete_steps is None)
        lost = progress.lost
        why = INTERRUPTED() if interrupted else progress.why
        return {
            "frames": self.frames,
            "captured_frames": captured,
            "steps": last["step"],
            "complete_steps": progress.complete_steps or 0,
            "digest": last["digest"],
            "digests": steps if config.digests else [],
            "taint": None if taint is None else msgspec.convert(taint, Finding),
            "lost": lost,
            "why": why or audit_history_of(where).doubt_of(),
            "interrupted": interrupted,
            "notes": list(progress.notes),
            "restarts": progress.restarts,
            "assumed": list(assumptions_of(where)),
            "checkpoint": str(saved) if saved else None,
        }


def job_end_of_replay(result: dict[str, Any]) -> JobEnd:
    """As the record of the chain's end has it."""
    lost: StepLost | None = result["lost"]
    why = result["why"] if lost is None else lost_step_finding(lost)
    saved = result["checkpoint"]
    return JobEnd(
        step=Step(result["steps"]),
        why=why,
        checkpoint=path_to_record(saved) if saved else None,
    )


def is_complete(result: dict[str, Any]) -> bool:
    """Whether every step of the stream was applied to the replica whole."""
    applied = result["steps"] and result["steps"] == result["complete_steps"]
    faults = "why", "lost", "taint"
    stopped = any(result[fault] is not None for fault in faults) or result["interrupted"]
    return bool(applied and not stopped)


def result_without_run(result: dict[str, Any], again: str) -> dict[str, Any]:
    """The result of a replay whose run directory is removed: commands in its texts name one that
    is to be made, and where steps are missing a note says how. again: the command that makes it."""
    name_run_to_keep()
    told: dict[str, Any] = _with_current_texts(result)
    if not all(map(is_complete, (told, *told["beside"]))):
        told["notes"] = [*told["notes"], RUN_NOT_KEPT(again)]
    return told


def _with_current_texts(value: Any) -> Any:
    """The same, with the texts of all findings in it made anew."""
    if isinstance(value, dict):
        return {key: _with_current_texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_current_texts, value))
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {name: _with_current_texts(getattr(value, name)) for name in value.__struct_fields__}
    made = msgspec.structs.replace(value, **fields)
    return made.with_current_texts() if isinstance(made, Finding) else made


def show(result: dict[str, Any], notes: SentenceConsole) -> None:
    """Prints the result for people. notes: console for notes and assumptions."""
    out = SentenceConsole()
    for note in result["notes"]:
        notes.print(str(note), markup=False)
        if note.remedy:
            notes.print(f"  {note.remedy}", markup=False)
    for number, one in enumerate((result, *result["beside"]), 1):
        if result["beside"]:
            out.print(f"job {number}:", highlight=False)
        _show(one, out, notes)
    print_tainted_models(result["tainted_models"])


def _show(result: dict[str, Any], out: SentenceConsole, notes: SentenceConsole) -> None:
    for line in result["digests"]:
        # Of a step that lacked bytes nobody has the gradient.
        gradient = line.get("gradient_sha256") or "not whole".ljust(SHA256_DIGITS)
        out.print(
            f"step {line['step']:>4}  gradient {gradient}  parameters {line['parameters_sha256']}",
            highlight=False,
            soft_wrap=True,
        )
    for assumption in result["assumed"]:
        notes.print_finding(assumption, "[yellow]assumed[/] ")
    lost: StepLost | None = result["lost"]
    if lost is not None:
        out.print(f"[red]{escape(str(lost_step_finding(lost)))}[/]")
        out.print(f"  {lost_step_finding(lost).remedy}", markup=False)
    elif result["why"] is not None:
        out.print(str(result["why"]), markup=False)
        if result["why"].remedy:
            out.print(f"  {result['why'].remedy}", markup=False)
    if result["taint"] is not None:
        out.print(f"[yellow]tainted[/] {escape(str(result['taint']))}")
        out.print(f"  {result['taint'].remedy}", markup=False)
    out.print(
        f"{result['captured_frames']:,} frames, {result['steps']:,} steps applied, "
        f"state digest {result['digest'] or 'none: no state was made'}",
        highlight=False,
        soft_wrap=True,
    )
    if result["checkpoint"]:
        out.print(f"checkpoint {result['checkpoint']}", highlight=False, soft_wrap=True)
