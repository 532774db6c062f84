"""A trainer's checkpoint that an operator gives to the updater: requested, taken or withdrawn,
answered.

The command writes the state to a file and then the request, which names that file (`request.json`);
one request waits at a time. The updater notes in its own part of the record that it takes the
request; from then on it cannot be withdrawn. It answers there too. Whether a request is taken or
withdrawn is decided under a lock on the folder, which the kernel releases if its holder is killed.
After the answer both files are deleted, the state's first, so that a later request's state is never
deleted in its place.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import msgspec
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.errors import StateError, is_disk_full
from flowcheck.findings.catalog.run_directories import (
    ANOTHER_REQUEST,
    FILE_GONE,
    REQUEST_WITHDRAWN,
    STILL_TAKEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.safetensors_file import safetensors_errors_as_os_errors
from flowcheck.replica.element_patch import ElementPatch
from flowcheck.stages.job_state import earlier_run_directories
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, update_part_of
from flowcheck.stages.job_state.lifecycle_record_schema import (
    CheckpointRequest,
    RequestAnswer,
    RequestKind,
    RequestPart,
    read_part,
)
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

ELEMENTS = "elements of the patch"
"""Name of a patch's elements beside its sections."""
LOOK_S = 0.05
"""Seconds between two looks for the answer. A choice: shorter costs processor time."""


def submit_request(
    run: RunDir,
    kind: RequestKind,
    step: Step,
    sections: dict[str, np.ndarray],
    source: str,
    *,
    after: int = 0,
) -> str:
    """Asks the updater to take the trainer's state of a step. Returns the request's identifier.

    source: the trainer's file, for people; after: as CheckpointRequest has it. Raises StateError
    where another request waits.
    """
    return _submit(run, kind, step, sections, source, after=after)


def _submit(
    run: RunDir,
    kind: RequestKind,
    step: Step,
    sections: dict[str, np.ndarray],
    source: str,
    *,
    after: int = 0,
    asked_bytes: int = 0,
    incarnation: int = 0,
) -> str:
    request = CheckpointRequest(
        id=uuid.uuid4().hex,
        kind=kind,
        file=f"request-{kind}.safetensors",
        step=step,
        source=source,
        after=after,
        asked_bytes=asked_bytes,
        incarnation=incarnation,
    )
    with _locked(run) as alone:
        if not alone or is_asked(run):
            raise StateError(ANOTHER_REQUEST(run.root))
        path = run.learned_folder / request.file
        with safetensors_errors_as_os_errors(path), atomic_path(path) as place:
            save_file(sections, place)
        try:
            write_atomically(run.request_record, msgspec.json.encode(RequestPart(request=request)))
        except OSError:
            path.unlink()
            raise
    return request.id


def submit_patch(
    run: RunDir,
    step: Step,
    patch: ElementPatch,
    source: str,
    *,
    asked_bytes: int = 0,
    incarnation: int | None = None,
) -> str:
    """Asks the updater to heal tainted elements with the trainer's values at a step. One later than
    the replica's waits until the replica is there. Returns the request's identifier.

    source: the trainer's file, or the address of its hook, for people; asked_bytes: as
    CheckpointRequest has it; incarnation: of the job that made the values, None: the one that is
    followed now. Raises StateError where another request waits.
    """
    number = incarnation_of(run).number if incarnation is None else incarnation
    held: dict[str, np.ndarray] = {ELEMENTS: patch.elements, **patch.parts}
    own = run, RequestKind.PATCH, step, held, source
    return _submit(*own, asked_bytes=asked_bytes, incarnation=number)


def read_patch(run: RunDir, request: CheckpointRequest) -> ElementPatch:
    """The values to take. Raises StateError where the file is gone (see refuse_request)."""
    parts = read_sections(run, request)
    elements = parts.pop(ELEMENTS, None)
    if elements is None or elements.ndim != 2 or elements.dtype != np.int64:
        raise StateError(FILE_GONE(run.learned_folder / request.file))
    return ElementPatch(elements, {name: part.view(np.uint8) for name, part in parts.items()})


def request_answer(run: RunDir, request: str) -> RequestAnswer | None:
    """The updater's answer to a request; None: there is none yet."""
    return update_part_of(run).answer(request)


def await_answer(run: RunDir, request: str, limit_s: float, what: str) -> RequestAnswer:
    """Waits for the updater's answer. what: the file that was given, for people.

    Raises StateError where the updater did not begin within `limit_s` seconds (the request is
    withdrawn then), or began and did not finish in as much time again.
    """
    began_s = time.monotonic()
    taken = False
    while (answer := request_answer(run, request)) is None:
        waited_s = time.monotonic() - began_s
        if waited_s > limit_s and not taken:
            taken = not withdraw_request(run, request)
            if not taken:
                raise StateError(REQUEST_WITHDRAWN(run=run.root, file=what, seconds=limit_s))
        elif waited_s > 2 * limit_s:
            raise StateError(STILL_TAKEN(run=run.root, file=what))
        Event().wait(LOOK_S)
    return answer


def withdraw_request(run: RunDir, request: str) -> bool:
    """Withdraws a request. False: the updater is taking it, or has answered it."""
    with _locked(run, wait=True):
        update = update_part_of(run)
        taking = update.taking is not None and update.taking.id == request
        if taking or update.answer(request) is not None:
            return False
        part = read_part(run.request_record, RequestPart)
        if part is not None and part.request.id == request:
            run.request_record.unlink()
            (run.learned_folder / part.request.file).unlink(missing_ok=True)
        return True


def is_asked(run: RunDir) -> bool:
    """Whether a checkpoint waits for the updater, or is just being taken."""
    return run.request_record.exists() or earlier_run_directories.is_asked(run)


def awaits_later_step(run: RunDir, at: Step) -> bool:
    """Whether what is asked is of a step behind `at`, which the updater does not take yet."""
    request = _request(run) if is_asked(run) else None
    return request is not None and _is_early(request, at)


def _is_early(request: CheckpointRequest, at: Step) -> bool:
    return request.kind is not RequestKind.BASE and request.step > at


def take_request(lifecycle: UpdateLifecycle, at: Step) -> CheckpointRequest | None:
    """For the updater, which has taken the steps up to `at`: the request to take now; None: there
    is none, or it is of a later step. Deletes the files of one that was answered before a kill."""
    run, part = lifecycle.run, lifecycle.part
    if part.taking is not None:
        return part.taking
    if not is_asked(run):
        return None
    with _locked(run) as alone:
        if not alone:
            return None  # it is just being withdrawn, or written
        request = _request(run)
        if request is None:
            return None
        if part.answer(request.id) is None:
            if _is_early(request, at):
                return None  # it can be withdrawn meanwhile
            return request if lifecycle.take(request) else None
    _remove(run, request)
    return None


def read_sections(run: RunDir, request: CheckpointRequest) -> dict[str, np.ndarray]:
    """The state to take, as sections of the replica. Raises StateError where the file is gone (see
    refuse_request)."""
    path = run.learned_folder / request.file
    if not path.exists():
        raise StateError(FILE_GONE(path))
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def clear_request(run: RunDir, request: CheckpointRequest) -> None:
    """For the updater: deletes the files of an answered request."""
    _remove(run, request)


def refuse_request(
    lifecycle: UpdateLifecycle, request: CheckpointRequest, at: Step, why: Finding
) -> None:
    """Answers that the request is refused, and deletes its files. Deletes them first where a full
    disk leaves no room for the answer."""
    try:
        lifecycle.answer(request, at, refused=why)
    except OSError as error:
        if not is_disk_full(error):
            raise
        (lifecycle.run.learned_folder / request.file).unlink(missing_ok=True)
        lifecycle.answer(request, at, refused=why)
    _remove(lifecycle.run, request)


def _request(run: RunDir) -> CheckpointRequest | None:
    part = read_part(run.request_record, RequestPart)
    return earlier_run_directories.request(run) if part is None else part.request


def _remove(run: RunDir, request: CheckpointRequest) -> None:
    (run.learned_folder / request.file).unlink(missing_ok=True)
    part = read_part(run.request_record, RequestPart)
    if part is not None and part.request.id == request.id:
        run.request_record.unlink(missing_ok=True)


@contextmanager
def _locked(run: RunDir, *, wait: bool = False) -> Iterator[bool]:
    """Holds the lock under which requests are made, taken and withdrawn. Yields whether it got the
    lock. wait: until nobody else holds it."""
    folder = os.open(run.learned_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    alone = True
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            alone = False
        except OSError:  # NFS locks no folder: two commands at once are all that it would part
            pass
        yield alone
    finally:
        os.close(folder)
