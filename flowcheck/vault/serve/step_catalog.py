"""The steps that can be downloaded: checkpoints in folders, and steps of a replica in memory,
written to files on demand.

A step in memory is written to files at the first request for it. Clients read these files, so that
the replica's memory is held only while the files are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.checkpoint_downloads import TOO_MANY_IN_MEMORY
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.step_numbers import Step
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, read_listing
from flowcheck.vault.persist.saver import StepToSave
from flowcheck.vault.serve.read_leases import ReadLeases

STAGED = "step-*"
LEFTOVERS = ".step-*.tmp"


class MemorySteps(Protocol):
    """The steps in the memory of a running replica."""

    def versions(self) -> tuple[Step, ...]:
        """Complete steps in memory, ascending."""

    def tainted(self) -> frozenset[Step]:
        """Those of which elements rest on bytes that no mirror brought."""

    def hold(self, step: Step) -> AbstractContextManager[StepToSave]:
        """Holds a step while it is written. Raises StateError if memory does not hold it."""


@dataclass(frozen=True, slots=True)
class ReadableStep:
    """A step whose files can be read."""

    folder: Path
    listing: CheckpointListing


@dataclass(frozen=True, slots=True)
class StepBeingWritten:
    """A step that is being written to files; the client must ask again."""

    step: Step


DoubtsOf = Callable[[Path, CheckpointListing], tuple[Finding, ...]]
"""(folder of a checkpoint, what it is) to what came to light behind its save and makes it
doubtful."""


class StepCatalog:
    """The steps that clients can download, found again for each request."""

    def __init__(
        self,
        folders: Sequence[Path],
        memory: MemorySteps | None = None,
        staging: Path | None = None,
        staged: int = 2,
        doubts: DoubtsOf = lambda *_: (),
        exact: Callable[[], Any] = lambda: None,
    ) -> None:
        """folders: contain checkpoints. memory: steps of a replica, if any. staging: folder for
        files of steps in memory; its content is deleted. staged: most steps in `staging`.
        exact: what clients are told of the exact states in memory."""
        self.exact = exact
        self._folders, self._memory, self.doubts = folders, memory, doubts
        self._staging, self._most = staging, staged
        self.leases = ReadLeases()
        self._lock = Lock()
        self._known: dict[Path, tuple[int, CheckpointListing]] = {}
        self._writing: Step | None = None
        self._failed: dict[int, str] = {}
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
            make_folder(staging, new=True)

    def durable(self) -> dict[Step, ReadableStep]:
        """{step: checkpoint on disk}, ascending. Of two checkpoints of a step, the newer one."""
        found: dict[Step, tuple[int, ReadableStep]] = {}
        for path in [path for folder in self._folders for path in folder.glob("step-*")]:
            read = self._read(path)
            if read is not None and read[0] > found.get(read[1].step, (-1,))[0]:
                found[read[1].step] = (read[0], ReadableStep(path, read[1]))
        return {step: one for step, (_, one) in sorted(found.items())}

    def in_memory(self) -> tuple[Step, ...]:
        return tuple(step for step in self._memory.versions() if step) if self._memory else ()

    def newest(self) -> Step | None:
        """The step that a request for `latest` gets, the newest without tainted elements where
        there is one; None: there is no step."""
        with self._lock:
            if self._writing is not None:
                return self._writing
        staged = self._staged()
        busy = sum(self.leases.busy(one.folder) for one in staged.values())
        memory = self.in_memory() if busy < self._most else ()
        durable = self.durable()
        files = {**durable, **staged}
        tainted = self._memory.tainted() if self._memory is not None else frozenset[Step]()
        every = sorted({*files, *memory}, reverse=True)
        # The newest first: what the older ones lack is not looked up.
        exact = (
            step
            for step in every
            if step not in tainted and not (step in files and self._lacks_bytes(files[step]))
        )
        return next(exact, every[0] if every else None)

    def _lacks_bytes(self, one: ReadableStep) -> bool:
        """By its manifest, or by what turned out behind it."""
        late = self.doubts(one.folder, one.listing)
        return one.listing.tainted or any(found.is_any_of(CALLED_EXACT_BEFORE) for found in late)

    def find(self, step: Step) -> ReadableStep | StepBeingWritten | None:
        """Looks for a step and starts to write it to files if it is only in memory. The caller
        reads the files under `leases`. None: there is no such step. Raises StateError if the step
        cannot be written now."""
        there = self.durable().get(step) or self._staged().get(step)
        if there is not None:
            return there
        with self._lock:
            if self._writing is not None:
                return StepBeingWritten(step) if step == self._writing or self._has(step) else None
            if not self._has(step):
                return None
            if step in self._failed:
                raise StateError(self._failed.pop(step))
            self._make_room()
            self._writing = step
        Thread(target=self._write, args=(step,), daemon=True).start()
        return StepBeingWritten(step)

    def _has(self, step: Step) -> bool:
        return step in self.in_memory()

    def _staged(self) -> dict[Step, ReadableStep]:
        paths = self._staging.glob(STAGED) if self._staging is not None else ()
        found = [(path, read[1]) for path in paths if (read := self._read(path)) is not None]
        return {told.step: ReadableStep(path, told) for path, told in found}

    def _make_room(self) -> None:
        """Deletes the oldest staged steps that no client reads. Raises StateError if there is still
        no room for another one."""
        self.leases.release()
        staged = sorted(self._staged().items())
        for _, one in staged:
            if len(staged) < self._most:
                return
            if not self.leases.busy(one.folder):
                shutil.rmtree(one.folder, ignore_errors=True)
                staged.pop()
        if len(staged) >= self._most:
            raise StateError(TOO_MANY_IN_MEMORY(len(staged)))

    def _write(self, step: Step) -> None:
        assert self._memory is not None and self._staging is not None
        try:
            with self._memory.hold(step) as held:
                final = self._staging / f"step-{held.step}"
                with atomic_path_per_process(final, leftovers=LEFTOVERS, folder=True) as folder:
                    held.write(folder)
        except (FlowCheckError, OSError) as error:
            with self._lock:
                self._failed = {step: plain_error_text(error)}
        finally:
            with self._lock:
                self._writing = None

    def _read(self, path: Path) -> tuple[int, CheckpointListing] | None:
        """(time in ns at which the checkpoint's manifest was written, its listing); None if there
        is no valid manifest."""
        try:
            written = (path / MANIFEST).stat().st_mtime_ns
            known = self._known.get(path)
            if known is None or known[0] != written:
                known = (written, read_listing(path))
                self._known[path] = known
        except (OSError, StateError):
            return None
        return known
