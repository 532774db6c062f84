"""Stage: makes steps of the replica durable at a target, while the updater goes on.

The save runs in a thread of this process, so that the stage handles messages meanwhile. No other
stage depends on this one: it may fail, hang, be killed and be started again at any instant.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from functools import partial

from flowcheck.config import JobConfig, PersistConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.chain_processes import (
    NOTHING_MOVED,
    SAVE_FAILED,
    SAVED_AGAIN,
    SAVES_DOUBTED,
)
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.messages import Message, Note, SaveFailed, StepSaved
from flowcheck.stages.checkpointing.pinned_steps import ReplicaSteps
from flowcheck.stages.checkpointing.scrub_turns import ScrubTurns
from flowcheck.stages.job_state.doubts_behind_save import doubt_of_later, doubts_to_note
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.step_numbers import Step
from flowcheck.vault.erasure.scrub import Scrubber
from flowcheck.vault.erasure.striped_target import StripedTarget
from flowcheck.vault.erasure.target_choice import open_striped_target, open_target
from flowcheck.vault.persist import save_status_file as tolds
from flowcheck.vault.persist.checkpoint_ledger import LedgerEntry
from flowcheck.vault.persist.save_doubt import NotedDoubts
from flowcheck.vault.persist.save_schedule import SaveSchedule
from flowcheck.vault.persist.save_status_file import SaveStatus
from flowcheck.vault.persist.saver import Saver

LOOK_S = 0.2
"""Seconds between two looks at the newest step. A choice: shorter costs processor time, longer
starts a save later."""
STATUS_EVERY_S = 1.0
"""Seconds between two writings of the status file. A choice: shorter writes more often."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
"""Seconds before the next try after a failure, doubled with each one. A choice: shorter loads a
store that is down, longer saves later once it is back."""
JOIN_S = 2.0
"""Seconds for a save that is asked to stop to end; else it ends with its process. A choice below
what the supervisor gives a stage (supervisor.py, GRACE_S)."""
EXIT_SAVE_HUNG = 3
"""Exit code of a process whose save stands still: it is started again."""


class PersistService:
    """Reads the replica, writes the target."""

    name = "persist"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.persist is not None, "the stage is started where it is stated"
        self._run, self._config = run, config.persist
        self._schedule = SaveSchedule(config.persist.every_steps, config.persist.every_minutes)
        self._reported = tolds.read_save_status(run.persisted) or SaveStatus(
            target=config.persist.target
        )
        self._reported.phase = ""
        self._thread: threading.Thread | None = None
        self._saver: Saver | None = None
        self._saved: LedgerEntry | None = None
        self._failed: Finding | None = None
        self._began_s = self._looked_s = self._wrote_s = time.monotonic()
        self._next_s = 0.0
        self._asked = False
        """Whether the target was read for what is durable there."""
        self._doubts_noted: tuple[object, ...] = ()
        """Sizes of the run's records of doubts when the target learned of them."""
        self._owes_save = False
        """Whether the last save failed: one is tried again, whatever the schedule says."""
        self._noted: NotedDoubts | None = None
        """What the save in progress noted at the target; None: nothing."""
        self._scrub = scrub_turns(run, config.persist) if config.persist.targets else None
        self._told_lacking: list[Finding] = []
        self._last: LedgerEntry | None = None
        """What this process saved last."""

    def start(self, links: StageSockets) -> None:
        self._links = links
        self._report()

    def work(self) -> int:
        now = time.monotonic()
        if self._thread is not None:
            if self._thread.is_alive():
                self._watch(now)
                return 0
            self._thread = None
            self._end()
            return 1
        if now - self._looked_s < LOOK_S or now < self._next_s:
            return 0
        self._looked_s = now
        steps = ReplicaSteps(self._run, self._config)
        last, tainted = self._reported.durable_step or 0, steps.tainted()
        held = steps.versions()
        since_s = now - self._began_s
        # What is exact is written while it is held, as later ones may all be tainted: where only a
        # tainted one is due, the newest exact one goes before it.
        exact = tuple(step for step in held if last < step and step not in tainted)
        step = self._schedule.due(held, last, since_s)
        if step is not None and exact:
            step = self._schedule.due(exact, last, since_s) or exact[-1]
        if step is None and self._owes_save and held and held[-1] > 0:
            step = held[-1]
        owed = not self._asked or self._doubts_noted != self._records_of_doubts()
        # What is saved can come in doubt while memory holds no step, as before a base.
        if step is not None or (owed and (held or self._reported.durable_name)):
            if self._scrub is None or not self._scrub.runs:
                self._begin(step)
            else:
                self._scrub.stop()
        elif self._scrub is not None:
            self._look_at_stores(self._scrub)
        return 0

    def _look_at_stores(self, scrub: ScrubTurns) -> None:
        """Whether all of several stores have their blocks, and makes them again."""
        if (taken := scrub.take()) is not None:
            result, of_blocks = taken
            for one in result.again:
                self._say(one)
            for one in result.lacking:
                if one not in self._told_lacking:
                    self._say(one)
            self._told_lacking = result.lacking
            if result.saves:
                self._reported.short = result.newest
            if of_blocks and result.saves:
                self._reported.scrubbed_s = time.time()
            self._report()
        elif scrub.failed is not None and scrub.failed not in self._told_lacking:
            self._told_lacking = [scrub.failed]
            self._say(scrub.failed)
        scrub.begin_if_due(self._reported.scrubbed_s)

    def _begin(self, step: Step | None) -> None:
        """Starts to save a step; None: first only looks which checkpoints the target has."""
        self._saved = self._failed = None
        self._owes_save = step is not None
        if step is not None:
            self._began_s = time.monotonic()
            self._reported.step, self._reported.began_s = step, time.time()
            self._reported.done_bytes = self._reported.total_bytes = (
                self._reported.skipped_bytes
            ) = 0
        self._thread = threading.Thread(target=self._save, args=(step,), daemon=True)
        self._thread.start()

    def _save(self, step: Step | None) -> None:
        """Runs in a thread of its own: whatever it raises is reported as the reason of the
        failure."""
        try:
            saver = saver_of(self._run, self._config)
            saver.on_phase, saver.after = self._phase, self._last
            self._saver = saver
            if step is None:
                self._saved = saver.durable_after_cleanup()
                if saver.unfinished():
                    self._saved = saver.save(Step(0))
            else:
                self._saved = saver.save(step)
            # Behind each save: a record may be older than the taint that a save lacks.
            seen = self._records_of_doubts()
            self._doubts_noted = ()
            self._noted = saver.note_doubts()
            self._doubts_noted = seen
        except FlowCheckError as error:
            self._failed = error.finding
        except Exception as error:
            kind = type(error).__name__
            self._failed = ERROR_TEXT(text=plain_error_text(error), kind=kind)

    def _records_of_doubts(self) -> tuple[object, ...]:
        """Changes with each line that can put a save in doubt, or end a doubt."""
        found = []
        for path in (self._run.audits, self._run.differing):
            with suppress(OSError):
                told = path.stat()
                found.append((path.name, told.st_ino, told.st_size, told.st_mtime_ns))
        return tuple(found)

    def _phase(self, phase: str, step: Step, total_bytes: int) -> None:
        self._reported.phase, self._reported.step, self._reported.total_bytes = (
            phase,
            step,
            total_bytes,
        )

    def _watch(self, now: float) -> None:
        """Reports the progress of a save; ends this process where nothing moves at the target any
        more."""
        saver = self._saver
        if now - self._wrote_s >= STATUS_EVERY_S:
            if saver is not None:
                self._reported.done_bytes = saver.pace.moved_bytes + saver.pace.skipped_bytes
                self._reported.skipped_bytes = saver.pace.skipped_bytes
            self._report()
        limit_s = 2 * self._config.timeout_s
        if saver is not None and saver.stands_still(limit_s):
            self._failed = NOTHING_MOVED(target=self._config.target, seconds=round(limit_s))
            self._end()
            self._links.flush()
            os._exit(EXIT_SAVE_HUNG)

    def _end(self) -> None:
        told, saved = self._reported, self._saved
        told.phase = ""
        if saved is not None:  # also where only what came to light could not be noted
            self._owes_save = False
            self._take(saved)
        if (noted := self._noted) is not None:
            self._noted = None
            told.take_doubts(noted)
            if noted.fresh:
                self._say(SAVES_DOUBTED(target=told.target, checkpoints=noted.fresh))
        if saved is not None and self._saver is not None and told.step is not None:
            short = self._saver.short
            if short is not None and short != told.short:
                self._say(short)
            if self._saver.beside is not None and told.beside is None:
                self._say(self._saver.beside)
            told.beside, self._last = self._saver.beside, saved
            told.short = short
            if short is not None and self._scrub is not None:
                self._scrub.hurry()
        if self._failed is None:
            self._asked, self._owes_save = True, False
            if told.attempts and saved is not None:
                self._say(SAVED_AGAIN(target=told.target, checkpoint=saved.name))
            told.error, told.attempts, told.next_try_s = None, 0, 0.0
            self._next_s = 0.0
        else:
            told.attempts += 1
            wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** (told.attempts - 1))
            self._next_s, told.next_try_s = time.monotonic() + wait_s, time.time() + wait_s
            if self._failed != told.error:  # status reports the same again
                self._say(SAVE_FAILED(self._failed))
            told.error = self._failed
            self._links.report(SaveFailed(step=told.step, why=self._failed, attempts=told.attempts))
        told.step = None
        self._saver = None
        self._report()

    def _take(self, saved: LedgerEntry) -> None:
        """Writes down the newest durable checkpoint, and reports one that is new."""
        told = self._reported
        fresh = told.durable_name != saved.name or told.durable_step != saved.step
        told.take_saved(saved)
        if fresh and told.step is not None:
            told.count += 1
            told.took_s = time.monotonic() - self._began_s
            self._report_saved(saved, told.took_s)

    def _report_saved(self, saved: LedgerEntry, took_s: float) -> None:
        self._links.report(
            StepSaved(
                step=saved.step,
                name=saved.name,
                bytes=saved.bytes,
                seconds=round(took_s, 3),
                time_ns=int(saved.saved * 1e9),
            )
        )

    def _report(self) -> None:
        self._wrote_s = time.monotonic()
        with suppress(OSError):  # told again in a second
            tolds.write_save_status(self._run.persisted, self._reported)

    def _say(self, found: Finding) -> None:
        self._links.report(Note(stage=self.name, finding=found))

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at the replica itself."""

    def drained(self) -> bool:
        return True

    def stop(self) -> None:
        if self._scrub is not None:
            self._scrub.stop()
            self._scrub.join(JOIN_S)
        if self._saver is not None:
            self._saver.pace.stop()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            self._reported.phase = ""
            self._report()


def scrub_turns(run: RunDir, config: PersistConfig) -> ScrubTurns:
    """Looks at the saves that this run made on several stores."""
    staging = run.upload_staging_folder(config.staging)
    # Journals of their own: what a store is said to have may be damaged there.
    journals = staging / "again"

    def opened() -> StripedTarget:
        shutil.rmtree(journals, ignore_errors=True)
        return open_striped_target(config, staging, journals)

    scrubber = Scrubber(opened, run.name_of_saves)
    return ScrubTurns(scrubber, config.scrub_every_hours, config.scrub_bytes_s)


def saver_of(run: RunDir, config: PersistConfig) -> Saver:
    """The saver of this run's steps. Raises ConfigError for a target that no installed library can
    open."""
    staging = run.upload_staging_folder(config.staging)
    place = open_target(config, staging)
    doubts = partial(doubts_to_note, run), partial(doubt_of_later, run)
    return Saver(config, place, staging, ReplicaSteps(run, config), *doubts)
