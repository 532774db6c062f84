"""Lifecycle records written by hand, for tests of those who read them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.stages.job_state.lifecycle_record_reader import extract_part_of, update_part_of
from flowcheck.stages.job_state.lifecycle_record_schema import (
    CheckpointRequest,
    Incarnation,
    OfferedIncarnation,
    RestartVerdict,
)
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState
from flowcheck.stages.run_directory.run_dir import RunDir


def follow(run: RunDir, incarnation: Incarnation) -> None:
    """As an extractor that follows it, and an updater that changed nothing of it."""
    part = msgspec.structs.replace(
        extract_part_of(run), state=ExtractState.FOLLOWING, followed=incarnation, offered=None
    )
    write_atomically(run.extract_record, msgspec.json.encode(part))


def change(run: RunDir, incarnation: Incarnation) -> None:
    """As an updater that took a base or an anchor."""
    part = msgspec.structs.replace(update_part_of(run), incarnation=incarnation)
    write_atomically(run.update_record, msgspec.json.encode(part))


def offer(run: RunDir, number: int = 2) -> Path:
    """As an extractor that hands the job over to its next incarnation, which is `number`; the
    folder of its files, an empty one."""
    folder = run.learned_folder / f"next-{number}"
    folder.mkdir(exist_ok=True)
    part = msgspec.structs.replace(
        extract_part_of(run),
        state=ExtractState.HANDING_OVER,
        offered=OfferedIncarnation(number=number, folder=folder.name),
    )
    write_atomically(run.extract_record, msgspec.json.encode(part))
    return folder


def give_verdict(run: RunDir, verdict: RestartVerdict) -> None:
    """As an updater that looked at what is offered."""
    part = msgspec.structs.replace(update_part_of(run), verdict=verdict)
    write_atomically(run.update_record, msgspec.json.encode(part))


def checkpoints(run: RunDir) -> list[str]:
    """Names of files of trainers' states that lie there for the updater."""
    return [path.name for path in run.learned_folder.glob("*.safetensors")]


def waiting(run: RunDir) -> CheckpointRequest | None:
    """The request whose files lie there."""
    if not run.request_record.exists():
        return None
    text = run.request_record.read_bytes()
    return msgspec.convert(msgspec.json.decode(text)["request"], CheckpointRequest)
