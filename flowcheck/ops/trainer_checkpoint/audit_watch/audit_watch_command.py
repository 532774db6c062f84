"""`flowcheck audit --watch`: runs the loop, prints each file and the summary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from flowcheck.config import AuditConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.file_audits import (
    COMPARED_ROUNDED,
    NO_FOLDER_STATED,
    THERE_BEFORE,
    WATCHED_IS_FILE,
)
from flowcheck.findings.catalog.refused_settings import NOT_OF_ALL_SHARDS
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import print_line
from flowcheck.ops.trainer_checkpoint.audit_watch.watch_loop import (
    OF_A_JOB,
    FolderWatch,
    chain_lives,
    line_of_file,
    supervisor_of,
)
from flowcheck.ops.watch.state.taint_of_models import tainted_models_if_read
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome, count_outcomes
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals

DIFFERENT = 1
NOTHING_COMPARED = 3
"""Nothing differs, but a file was not compared, or there was none."""
END_LIMIT_S = 10.0
"""Seconds after the chain's end, or after a signal, in which files that are being written may
become whole. A choice: longer delays the end, shorter leaves out the last checkpoint."""
STAGE_END_LIMIT_S = 2.0
"""The same of a stage: the end of its chain waits for it. A choice."""
NICENESS = 10
"""Nice value of a stage: the stages that take frames go first. A choice."""
SIGNAL_LOOK_S = 0.2
"""Seconds between two checks for signals. A choice: longer ends later."""


def run(root: Path, stated: AuditConfig | None, parent: int | None, *, as_json: bool) -> int:
    """Watches until the chain ends, or a signal. Returns the exit code. Raises ConfigError if
    there is no run, or what is to be watched is a file. stated: None for [audit] of the job file.
    parent: ends with this process."""
    where = RunDir(root)
    of_run = where.settings().audit
    settings = of_run if stated is None else stated
    if settings is None:
        raise ConfigError("--watch", None, NO_FOLDER_STATED())
    if stated is not None and where.settings().all_shards and where.port is where:
        raise ConfigError("--watch", stated.folder, NOT_OF_ALL_SHARDS())
    if stated is not None and Path(stated.folder).is_file():
        raise ConfigError("--watch", stated.folder, WATCHED_IS_FILE(stated.folder))
    supervisor = supervisor_of(where)

    def tell(file: AuditedFile) -> None:
        if as_json:
            print(line_of_file(file).decode(), flush=True)
        else:
            _print(file)

    def warn(found: Finding) -> None:
        if not as_json:
            print_line(str(found))

    with Signals(parent) as signals:
        if parent is not None:
            if not die_with_parent(parent):
                return 0
            os.nice(NICENESS)
        watch = FolderWatch(where, settings, tell, warn)
        # A stage takes seconds to start, in which the trainer may write.
        watch.begin(None if parent is None else where.config.stat().st_mtime_ns)
        if not as_json:
            print_line(f"{settings.folder} is watched; Ctrl-C ends with a summary")
        while not signals.received and chain_lives(where, supervisor):
            left_s = watch.turn(lambda: bool(signals.received))
            while left_s > 0 and not signals.received:
                Event().wait(min(left_s, SIGNAL_LOOK_S))
                left_s -= SIGNAL_LOOK_S
        if not signals.hard:
            watch.end(END_LIMIT_S if parent is None else STAGE_END_LIMIT_S)
    code = exit_code_of(watch.taken)
    _summarize(where, settings, watch.taken, code, as_json=as_json)
    return 0 if parent is not None else code


def exit_code_of(files: Sequence[AuditedFile]) -> int:
    """0: all files that appeared are equal, or a job's base; 1: one differs; 3: none does, and one
    was not compared, or there was none. Files that were there before the watch count only if they
    are compared."""
    own = [file for file in files if not _was_before(file)]
    if any(file.outcome in (FileOutcome.DIFFERS, FileOutcome.STALE) for file in own):
        return DIFFERENT
    all_compared = bool(own) and all(file.outcome in OF_A_JOB for file in own)
    return 0 if all_compared else NOTHING_COMPARED


def _was_before(file: AuditedFile) -> bool:
    return any(one.is_any_of(THERE_BEFORE) for one in file.why)


_WORDS = {
    FileOutcome.EQUAL: "equal",
    FileOutcome.DIFFERS: "DIFFERS",
    FileOutcome.STALE: "WRONG FILE",
    FileOutcome.NOT_COMPARED: "not compared",
    FileOutcome.BASE: "the base",
    FileOutcome.WAITING: "waits",
}


def _print(file: AuditedFile) -> None:
    step = "" if file.step is None else f"step {file.step}, "
    said = _WORDS[file.outcome]
    if file.outcome is FileOutcome.EQUAL:
        rounded = any(one.is_any_of(COMPARED_ROUNDED) for one in file.why)
        said += f"{'' if rounded else ', bit for bit'}: {file.tensors} tensors"
        said += "" if file.optimizer else " (no optimizer state in it)"
        if file.not_compared_elements:
            said += f", but for {file.not_compared_elements:,} tainted elements"
    print_line(f"{file.file}: {step}{said}")
    for one in (*file.why, *((file.heal,) if file.heal is not None else ())):
        print_line(f"  {one}")


def _summarize(
    where: RunDir, settings: AuditConfig, files: Sequence[AuditedFile], code: int, *, as_json: bool
) -> None:
    counts, history = count_outcomes(files), audit_history_of(where)
    before = sum(map(_was_before, files))
    healed = sum(file.healed_elements for file in files)
    doubt, models = history.doubt_of(), tainted_models_if_read(where)
    if as_json:
        result: dict[str, Any] = {
            "done": True,
            "folder": str(settings.folder),
            "files": counts,
            "there_before": before,
            "healed_elements": healed,
            "steps": _by_step(files),
            "equal_step": history.equal_step,
            "failed_step": None if history.failed is None else history.failed.step,
            "doubt": doubt,
            "damaged": history.damaged,
            "tainted_models": models,
            "exit_code": code,
        }
        print(msgspec.json.encode(result).decode(), flush=True)
        return
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    rest = f" ({before} were there before)" if before else ""
    rest += f"; {healed:,} elements healed" if healed else ""
    print_line(f"{settings.folder}: {told}{rest}")
    for one in (*history.damaged, *((doubt,) if doubt is not None else ())):
        print_line(f"  {one}")
        print_line(f"  {one.remedy}")
    print_tainted_models(models or ())


def _by_step(files: Sequence[AuditedFile]) -> list[dict[str, Any]]:
    """[{"step", outcome: [file]}], ascending, of all files that showed their step."""
    steps = sorted({file.step for file in files if file.step is not None})
    return [
        {"step": step}
        | {
            outcome.value: [f.file for f in files if f.step == step and f.outcome is outcome]
            for outcome in _WORDS
            if any(f.step == step and f.outcome is outcome for f in files)
        }
        for step in steps
    ]
