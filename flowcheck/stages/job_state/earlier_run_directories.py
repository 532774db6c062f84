"""Run directories from before the lifecycle record, read as the record that they stand for.

There the existence of a file was the message: `incarnation.json`, the folder `next` of a later
incarnation with `verdict.json` in it, `base.safetensors` and `anchor.safetensors`. Nothing here
writes them. A stage that is started on such a directory writes its own part of the record and
continues from where the kill came, also in the middle of a handover: that wrote `incarnation.json`
first, then `job.json`, and moved `next` away last.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.stages.job_state.lifecycle_record_schema import (
    CheckpointRequest,
    ExtractPart,
    Incarnation,
    OfferedIncarnation,
    RequestKind,
    RestartVerdict,
    UpdatePart,
)
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

OFFERED_FOLDER = "next"
INCARNATION_FILE, VERDICT_FILE = "incarnation.json", "verdict.json"
REQUEST_FILES = {
    RequestKind.BASE: "base.safetensors",
    RequestKind.ANCHOR: "anchor.safetensors",
}


def extract_part(run: RunDir) -> ExtractPart:
    """The extractor's part, from such files; without any of them, that it stages messages."""
    followed, verdict = _incarnation(run.learned_folder) or Incarnation(), _verdict(run)
    if not _offered(run).is_dir():
        learned = run.learned_job.exists()
        state = ExtractState.FOLLOWING if learned else ExtractState.STAGING
        return ExtractPart(state=state, followed=followed)
    if verdict is not None and followed.number > verdict.number:
        # Killed amid the taking over, which is done again: what was followed is in the history.
        history = run.history(verdict.number)
        followed = _incarnation(history) or Incarnation(number=verdict.number)
    down = verdict is not None and not verdict.followed
    return ExtractPart(
        state=ExtractState.TURNED_DOWN if down else ExtractState.HANDING_OVER,
        followed=followed,
        offered=OfferedIncarnation(number=followed.number + 1, folder=OFFERED_FOLDER),
    )


def update_part(run: RunDir) -> UpdatePart:
    """The updater's part, from such files."""
    known = _incarnation(run.learned_folder)
    number = 1 if known is None else known.number
    return UpdatePart(number=number, incarnation=known, verdict=_verdict(run))


def is_asked(run: RunDir) -> bool:
    """Whether a checkpoint waits there for the updater."""
    return any((run.learned_folder / name).exists() for name in REQUEST_FILES.values())


def request(run: RunDir) -> CheckpointRequest | None:
    """The checkpoint that waits there for the updater; None: there is none."""
    from safetensors import safe_open  # here alone: most who read records read no checkpoint

    for kind, name in REQUEST_FILES.items():
        path = run.learned_folder / name
        with suppress(FileNotFoundError):
            found = path.stat()
            with safe_open(path, framework="numpy") as file:
                told = file.metadata()
            # A base had no name; the next one is another file.
            unnamed = f"{kind}-{found.st_ino}-{found.st_mtime_ns}"
            return CheckpointRequest(
                id=told.get("request", unnamed),
                kind=kind,
                file=name,
                step=Step(int(told["step"])),
                source=told["source"],
                after=int(told.get("after", 0)),
            )
    return None


def _offered(run: RunDir) -> Path:
    return run.learned_folder / OFFERED_FOLDER


def _incarnation(folder: Path) -> Incarnation | None:
    with suppress(FileNotFoundError):
        return msgspec.json.decode((folder / INCARNATION_FILE).read_bytes(), type=Incarnation)
    return None


def _verdict(run: RunDir) -> RestartVerdict | None:
    with suppress(FileNotFoundError):
        text = (_offered(run) / VERDICT_FILE).read_bytes()
        return parse_verdict(text)
    return None


def parse_verdict(text: bytes) -> RestartVerdict:
    """The verdict in verdict.json, whose reason was a sentence. Raises msgspec.MsgspecError where
    it is damaged."""
    told = msgspec.json.decode(text, type=dict[str, Any])
    why = msgspec.convert(told.pop("why", ""), str)
    verdict = msgspec.convert(told, RestartVerdict)
    return msgspec.structs.replace(verdict, why=earlier_finding(why) if why else None)
