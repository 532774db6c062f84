"""Saves a step from memory to a target, up to the file `latest` that names it. After a kill the
next process continues where the killed one was.

The order of a save:

1. the ledger names the checkpoint as being written;
2. its files are written, the manifest last, and verified;
3. the ledger lists it as durable;
4. `latest` names it, unless it has tainted elements and another one has none;
5. the ledger no longer names it as being written, and names the checkpoints to delete: never the
   newest one that is exact by what came to light until now;
6. these are deleted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.config import PersistConfig
from flowcheck.errors import FlowCheckError, StateError, naming_file
from flowcheck.findings.catalog.checkpoint_stores import SAVED_BESIDE
from flowcheck.findings.finding import Finding
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST, latest_name
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, Manifest, decode_manifest
from flowcheck.step_numbers import Step
from flowcheck.vault.persist import checkpoint_ledger as ledgers
from flowcheck.vault.persist.checkpoint_ledger import LEDGER, Ledger, LedgerEntry
from flowcheck.vault.persist.checkpoint_listing import (
    CheckpointListing,
    listing_of_manifest,
    read_listing,
    verify_checkpoint,
)
from flowcheck.vault.persist.local_folder import LEFTOVERS, LocalFolder
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.save_doubt import NotedDoubts, noted_doubts
from flowcheck.vault.persist.save_schedule import deletable_checkpoints
from flowcheck.vault.persist.storage_target import StorageTarget
from flowcheck.vault.persist.upload_journal import SENT

DoubtsOf = Callable[
    [Step, str, Callable[[], Manifest | None], tuple[Finding, ...]], tuple[Finding, ...]
]
"""(step, digest, what reads the manifest of its checkpoint, what is noted of it) to what came to
light behind its save."""
DoubtOfLater = Callable[[Finding | None], Finding | None]
"""(what is noted) to why steps that are made from this run's saves are in doubt."""


def _noted_alone(
    step: Step, digest: str, manifest: object, noted: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """`DoubtsOf` where only the ledger is known."""
    return noted


class StepToSave(Protocol):
    """A step that does not change while it is held."""

    @property
    def step(self) -> Step: ...

    @property
    def digest(self) -> str: ...

    def write(self, folder: Path) -> None:
        """Writes the step's files into an empty folder, each synced, the manifest last."""


class SaveSource(Protocol):
    """A source of steps to save."""

    name: str
    """Name of the run in the ledger."""

    def hold(self, step: Step) -> AbstractContextManager[StepToSave]:
        """Holds a step while it is written. Raises StateError if memory does not hold the step, or
        if it changed meanwhile."""


class Saver:
    """Saves checkpoints to one target, one at a time."""

    def __init__(
        self,
        config: PersistConfig,
        place: StorageTarget,
        staging: Path,
        source: SaveSource,
        doubts_of: DoubtsOf = _noted_alone,
        of_later: DoubtOfLater = lambda noted: noted,
    ) -> None:
        """doubts_of, of_later: what is known of the run's saves, and of steps made from them."""
        self._config, self._place, self._source = config, place, source
        self._doubts_of, self._of_later = doubts_of, of_later
        self._staging = staging
        self._direct = isinstance(place, LocalFolder) and config.rate_limit_bytes_s is None
        self.pace = TransferPace(config.rate_limit_bytes_s)
        self.on_phase: Callable[[str, Step, int], None] = lambda *_: None
        """Called at the start of each phase with (phase, step, bytes; 0: not known)."""
        self.after: LedgerEntry | None = None
        """What this process saved last; None: nothing yet."""
        self.beside: Finding | None = None
        """That another process saves to the target meanwhile; None: nothing tells so."""
        self._far = False
        """Whether the save in progress waits for a remote target."""

    @property
    def short(self) -> Finding | None:
        """Which of several stores have not taken the checkpoint that was saved; None: all have."""
        return self._place.short

    def stands_still(self, limit_s: float) -> bool:
        """Whether a transfer to a remote target made no progress for `limit_s` seconds. Local
        writing and reading have no limit."""
        return self._far and time.monotonic() - self.pace.moved_s > limit_s

    def durable(self) -> LedgerEntry | None:
        """The newest durable checkpoint of this run at the target; None: there is none."""
        own = self._ledger().of(self._source.name)
        return own[-1] if own else None

    def durable_after_cleanup(self) -> LedgerEntry | None:
        """Finishes or deletes what a killed process left at the target, then returns the newest
        durable checkpoint of this run; None: there is none."""
        self._cleaned(self._ledger())
        return self.durable()

    def note_doubts(self) -> NotedDoubts:
        """Writes into the ledger what came to light behind the saves of this run, so that whoever
        reads the target learns it without the run. `latest` names one of which no copies differed,
        where there is one. Raises StateError or OSError."""
        ledger = self._ledger()
        own = ledger.of(self._source.name)
        told = self._doubts_in(own)
        fresh = tuple(one.name for one in own if told[one.name] and not one.doubts)
        run = self._source.name
        noted = ledger.with_doubts(told).with_doubt_of_later(
            run, self._of_later(ledger.later.get(run))
        )
        if noted != ledger:
            self._noted(noted)
        exact = [one for one in noted.of(self._source.name) if not one.lacks_bytes]
        if any(told.values()) and exact:
            entry = self._named_latest(noted)
            if entry is not None and entry.run == self._source.name and entry.lacks_bytes:
                self._place.write(LATEST, f"{exact[-1].name}\n".encode())
        return noted_doubts(noted, run, fresh)

    def _doubts_in(self, own: Sequence[LedgerEntry]) -> dict[str, tuple[Finding, ...]]:
        """{name: what came to light until now}. Raises StateError or OSError."""
        return {
            one.name: self._doubts_of(
                one.step, one.digest, partial(self._manifest, one.name), one.doubts
            )[: ledgers.DOUBTS_MAX]
            for one in own
        }

    def _named_latest(self, ledger: Ledger) -> LedgerEntry | None:
        """The entry that `latest` names; None: it names none, or cannot be read: the next save
        writes it."""
        text = self._place.read(LATEST)
        with suppress(StateError):
            return ledger.entry(latest_name(text or b"", self._place.url))
        return None

    def _manifest(self, name: str) -> Manifest | None:
        """None: it is gone, or damaged."""
        text = self._place.read(f"{name}/{MANIFEST}")
        with suppress(StateError):
            return decode_manifest(text or b"", f"{self._place.url}/{name}/{MANIFEST}")
        return None

    def unfinished(self) -> bool:
        """Whether a checkpoint was partly sent. `save` then sends the rest of this checkpoint,
        whichever step it is called with."""
        return any((self._staging / f"{name}{SENT}").exists() for name in self._staged_names())

    def save(self, step: Step) -> LedgerEntry:
        """Makes `step`, or else the unfinished checkpoint, durable; `latest` names it afterwards.

        Raises StateError or OSError; earlier durable checkpoints are then unchanged.
        """
        ledger = self._cleaned(self._ledger())
        if self._direct:
            return self._save_direct(ledger, step)
        names = self._staged_names()
        begun = [name for name in names if (self._staging / f"{name}{SENT}").exists()]
        for name in set(names) - set(begun[:1]):
            shutil.rmtree(self._staging / name, ignore_errors=True)
        if begun:
            return self._send(ledger, begun[0])
        return self._send(ledger, self._stage(ledger, step))

    def _save_direct(self, ledger: Ledger, step: Step) -> LedgerEntry:
        assert isinstance(self._place, LocalFolder)
        root = self._place.root
        with self._source.hold(step) as held:
            name = self._name(ledger, held)
            if (root / name).exists():
                found = read_listing(root / name)
            else:
                ledger = self._noted(ledger.with_writing(name))
                self.on_phase("writing", held.step, 0)
                with self._new_folder(root / name) as folder:
                    held.write(folder)
                    self.pace.heartbeat()
                    self.on_phase("verifying", held.step, 0)
                    found = verify_checkpoint(folder)
                self.pace.note_moved(found.size_bytes)
        return self._finish(ledger, name, found)

    def _stage(self, ledger: Ledger, step: Step) -> str:
        """Writes a complete checkpoint into the staging folder. Returns its name."""
        with self._source.hold(step) as held:
            name = self._name(ledger, held)
            self.on_phase("writing", held.step, 0)
            with self._new_folder(self._staging / name) as folder:
                held.write(folder)
                self.pace.heartbeat()
        return name

    def _send(self, ledger: Ledger, name: str) -> LedgerEntry:
        folder = self._staging / name
        try:
            found = verify_checkpoint(folder)
        except StateError:
            shutil.rmtree(folder, ignore_errors=True)  # the next attempt makes another one
            raise
        if name not in ledger.writing:
            ledger = self._noted(ledger.with_writing(name))
        self.on_phase("sending", found.step, found.size_bytes)
        self.pace.heartbeat()
        self._far = not isinstance(self._place, LocalFolder)
        self._place.send(folder, name, found, self.pace)
        self.on_phase("verifying", found.step, found.size_bytes)
        self._place.verify(name, found, self.pace)
        entry = self._finish(ledger, name, found)
        self._far = False
        shutil.rmtree(folder, ignore_errors=True)
        (self._staging / f"{name}{SENT}").unlink(missing_ok=True)
        return entry

    def _finish(self, ledger: Ledger, name: str, found: CheckpointListing) -> LedgerEntry:
        """Steps 3 to 6 of a save, for a checkpoint that is written and verified."""
        self.pace.heartbeat()
        self.beside = self._saved_beside(ledger, name)
        known = ledger.entry(name)
        entry = LedgerEntry(
            name=name,
            step=found.step,
            digest=found.digest,
            bytes=found.size_bytes,
            saved=time.time(),
            run=self._source.name,
            tainted=found.tainted,
            lacking=self._place.lacking,
            doubts=known.doubts if known is not None and known.digest == found.digest else (),
        )
        self._name_latest(self._noted(ledger.with_entry(entry)), entry)
        return entry

    def _saved_beside(self, ledger: Ledger, name: str) -> Finding | None:
        """By the newest that somebody saved since this process saved: whatever its run is called,
        as runs of two machines may have one name."""
        if self.after is None:
            return None
        since, known = self.after.saved, (self.after.name, name)
        others = [e for e in ledger.entries if e.saved > since and e.name not in known]
        if not others:
            return None
        return SAVED_BESIDE(target=self._place.url, name=others[-1].name, run=others[-1].run)

    def _name_latest(self, ledger: Ledger, entry: LedgerEntry) -> Ledger:
        """Writes `latest` for the ledger's newest entry, and deletes expired checkpoints. While
        there is one without tainted elements, `latest` names the newest such."""
        own = ledger.of(self._source.name)
        exact = [one for one in own if not one.lacks_bytes]
        if not entry.lacks_bytes or not exact:
            self._place.write(LATEST, f"{entry.name}\n".encode())
        names = self._expired(ledger)
        ledger = self._noted(ledger.without_writing(entry.name).with_leaving(names))
        return self._remove_leaving(ledger) if names else ledger

    def _expired(self, ledger: Ledger) -> tuple[str, ...]:
        """Names of this run's checkpoints to delete. Three stay: the newest that is exact, the
        newest without tainted elements, which `latest` names, and the newest that all stores have.
        None is deleted while it cannot be read which are in doubt: `note_doubts` tells that."""
        steps = [one.step for one in ledger.of(self._source.name)]
        gone = deletable_checkpoints(steps, self._config.keep_last, self._config.keep_every)
        if not gone:
            return ()
        with suppress(FlowCheckError, OSError):
            told = self._doubts_in(ledger.of(self._source.name))
            own = ledger.with_doubts(told).of(self._source.name)
            exact = [one for one in own if one.is_exact]
            whole = [one for one in own if not one.lacks_bytes]
            at_all = [one for one in exact or own if not one.lacking]
            stay = {one.name for one in (*exact[-1:], *whole[-1:], *at_all[-1:])}
            return tuple(own[index].name for index in gone if own[index].name not in stay)
        return ()

    def _remove_leaving(self, ledger: Ledger) -> Ledger:
        held = tuple(name for name in ledger.leaving if not self._place.remove(name))
        if held != ledger.leaving:
            ledger = self._noted(ledger.without_leaving().with_leaving(held))
        return ledger

    def _cleaned(self, ledger: Ledger) -> Ledger:
        """Finishes or deletes each checkpoint that a killed process left at the target."""
        if ledger.leaving:
            ledger = self._remove_leaving(ledger)
        for name in ledger.writing:
            ledger = self._named(ledger, name)
        staged = self._staged_names()
        for name in [one for one in ledger.writing if one not in staged]:
            if self._direct and (found := self._whole(name)) is not None:
                self._finish(ledger, name, found)
                ledger = self._ledger()
            else:
                self._place.remove(name)
                ledger = self._noted(ledger.without_writing(name))
        return ledger

    def _named(self, ledger: Ledger, name: str) -> Ledger:
        """Handles a name in `writing` that has an entry: a checkpoint that was durable before a
        kill and that `latest` may not name yet.

        If it is the newest entry, `latest` names it. If its manifest is gone, since its files were
        deleted and not all written again, the rest is deleted. Otherwise only the name leaves
        `writing`.
        """
        entry = ledger.entry(name)
        if entry is None:
            return ledger
        if self._place.read(f"{name}/{MANIFEST}") is None:
            own = ledger.without_writing(name).with_leaving((name,))
            return self._remove_leaving(self._noted(own))
        if entry == ledger.entries[-1]:
            return self._name_latest(ledger, entry)
        return self._noted(ledger.without_writing(name))

    def _whole(self, name: str) -> CheckpointListing | None:
        assert isinstance(self._place, LocalFolder)
        try:
            return verify_checkpoint(self._place.root / name)
        except StateError:
            return None

    def _name(self, ledger: Ledger, held: StepToSave) -> str:
        """The checkpoint's name: step-N. If the target already has a step of this number with
        another digest, or something that FlowCheck did not save, the digest is appended."""
        name, own = f"step-{held.step}", held.digest
        known = {entry.name: entry.digest for entry in ledger.entries}
        if name in ledger.leaving or known.get(name, held.digest) != held.digest:
            return f"{name}-{held.digest[:8]}"
        if name not in known and name not in ledger.writing:
            there = self._place.read(f"{name}/{MANIFEST}")
            stranger = self._place.holds(name) if there is None else _digest(there, name) != own
            if stranger:  # noted as being written it would be taken away with what failed
                return f"{name}-{held.digest[:8]}"
        return name

    def _ledger(self) -> Ledger:
        return ledgers.decode(self._place.read(LEDGER), f"{self._place.url}/{LEDGER}")

    def _noted(self, ledger: Ledger) -> Ledger:
        self._place.write(LEDGER, ledgers.encode(ledger))
        return ledger

    def _staged_names(self) -> list[str]:
        folders = self._staging.glob("step-*") if not self._direct else ()
        return sorted(one.name for one in folders if one.is_dir())

    @contextmanager
    def _new_folder(self, final: Path) -> Iterator[Path]:
        with naming_file(final):
            make_folder(final.parent)
            with atomic_path_per_process(final, leftovers=LEFTOVERS, folder=True) as folder:
                yield folder


def _digest(manifest: bytes, name: str) -> str:
    try:
        return listing_of_manifest(manifest, name).digest
    except FlowCheckError:
        return ""
