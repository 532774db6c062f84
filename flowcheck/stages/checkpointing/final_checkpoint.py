"""Saves the last step of a chain that has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from flowcheck.config import JobConfig, PersistConfig
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.chain_processes import (
    DOUBTS_NOT_NOTED,
    NO_CHECKPOINT,
    NOTHING_MOVED,
    STEP_IS_SAVED,
    STEP_TRIED_AGAIN,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.checkpointing.persist_stage import saver_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.persist.checkpoint_ledger import LedgerEntry
from flowcheck.vault.persist.save_doubt import NotedDoubts
from flowcheck.vault.persist.save_status_file import SaveStatus, read_save_status, write_save_status
from flowcheck.vault.persist.saver import Saver

ATTEMPTS = 3
"""Tries to write the last checkpoint. A choice: more delays the end of a chain whose target is
down."""
RETRY_WAITS_S = (1.0, 4.0)
"""Seconds to wait before the second and the third try. A choice: longer delays the end of a chain,
shorter meets the same fault again."""
LOOK_S = 0.1
"""Seconds between two looks at a save that is under way. A choice: shorter costs processor time."""


def save_last_step(
    run: RunDir, config: JobConfig, step: Step | None, say: Callable[[Finding], None]
) -> LedgerEntry | None:
    """Saves the last step of a replica that nobody changes any more, and waits until it is durable
    at the target. Returns None where there is no step. step: an older one that it holds.

    Raises StateError where that fails ATTEMPTS times, or nothing moves at the target.
    """
    assert config.persist is not None
    if not run.replica.exists():
        return None
    wanted = peek_versions(run.replica)[1][-1] if step is None else step
    if wanted == 0:
        return None
    for attempt in range(ATTEMPTS):
        try:
            return _saved(run, config.persist, wanted, say)
        except (FlowCheckError, OSError) as error:
            last = error
            if attempt < len(RETRY_WAITS_S):
                say(STEP_TRIED_AGAIN(step=wanted, reason=error))
                threading.Event().wait(RETRY_WAITS_S[attempt])
    raise StateError(NO_CHECKPOINT(target=config.persist.target, reason=last)) from last


def _saved(
    run: RunDir, config: PersistConfig, wanted: Step, say: Callable[[Finding], None]
) -> LedgerEntry:
    saver = saver_of(run, config)
    durable = saver.durable()
    if durable is None or durable.step != wanted or saver.unfinished():
        say(STEP_IS_SAVED(step=wanted, target=config.target))
    while True:
        found = _watched(saver, config, run, wanted, say)
        if found.step == wanted:
            return found


def _report(run: RunDir, config: PersistConfig, saved: LedgerEntry, noted: NotedDoubts) -> None:
    """For `flowcheck status`, as the stage reported what it saved."""
    told = read_save_status(run.persisted) or SaveStatus(target=config.target)
    told.count += (told.durable_step, told.durable_name) != (saved.step, saved.name)
    told.take_saved(saved)
    told.take_doubts(noted)
    told.phase, told.step, told.error, told.attempts = "", None, None, 0
    write_save_status(run.persisted, told)


def _watched(
    saver: Saver, config: PersistConfig, run: RunDir, wanted: Step, say: Callable[[Finding], None]
) -> LedgerEntry:
    """Runs `Saver.save` in a thread, and gives it up where nothing moves any more. What came to
    light about earlier saves is noted at the target with it; a failure of that alone is told."""
    made: list[LedgerEntry | BaseException] = []

    def save() -> None:
        try:
            entry = saver.save(wanted)
            try:
                _report(run, config, entry, saver.note_doubts())
            except (FlowCheckError, OSError) as error:
                say(DOUBTS_NOT_NOTED(target=config.target, reason=error))
            made.append(entry)
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        if not config.is_local and saver.stands_still(2 * config.timeout_s):
            saver.pace.stop()
            seconds = round(2 * config.timeout_s)
            raise StateError(NOTHING_MOVED(target=config.target, seconds=seconds))
    (result,) = made
    if isinstance(result, BaseException):
        raise result
    return result
