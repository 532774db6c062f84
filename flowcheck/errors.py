"""One family of exceptions, and `check()`, by which a C return code becomes one.

What the operator can mend is an exception that says what was tried, what was found and what to
do. What the world does to packets is a counter. Our own mistakes are assertions.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.findings.catalog import (
    capture_file_reasons,
    dpdk_failures,
    extraction_refusals,
    shared_file_reasons,
)
from flowcheck.findings.catalog.general_errors import (
    CORE_REFUSED,
    ERROR_TEXT,
    SETTING_MISSING,
    SETTING_REFUSED,
)
from flowcheck.findings.finding import Entry, Finding

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading a text as JSON or MessagePack raises where it is not what was asked for: of other
fields or not well formed; no UTF-8; brackets thousands deep."""


CORE_REASONS: dict[str, Entry] = {
    name: entry
    for module in (shared_file_reasons, extraction_refusals, capture_file_reasons, dpdk_failures)
    for name, entry in vars(module).items()
    if isinstance(entry, Entry)
}
"""Rows of dpdk_ext/core/fc_error_table.h: what a refusal of C's is."""


class FlowCheckError(Exception):
    """Anything FlowCheck says to its user; the command line prints it and leaves with code 2.

    Made with a finding, or with the text of somebody else's error."""

    @property
    def finding(self) -> Finding:
        """What is stored, sent and put into JSON of it."""
        first = self.args[0] if self.args else None
        return first if isinstance(first, Finding) else ERROR_TEXT(kind=_kind(self), text=str(self))


class ConfigError(FlowCheckError):
    """A setting is unknown, missing, or not what it must be."""

    def __init__(self, key: str, value: object, right: Finding) -> None:
        """key: of the job file or the option; value: None where it is not set; right: what it must
        be, and what to do."""
        self.key, self.value, self.right = key, value, right
        self.place: Finding | None = None
        super().__init__(self._finding())

    def locate(self, place: Finding) -> None:
        """Tells in which file it stands (IN_FILE, AT_LINE of general_errors)."""
        self.place = place
        self.args = (self._finding(),)

    def correct(self, right: Finding) -> None:
        """Replaces what it says of the value."""
        self.right = right
        self.args = (self._finding(),)

    def _finding(self) -> Finding:
        told = {"place": self.place, "key": self.key, "right": self.right}
        if self.value is None:
            return SETTING_MISSING(**told)
        return SETTING_REFUSED(value=repr(self.value), **told)


class RunDirError(ConfigError):
    """A folder is not the run directory that a command needs; `right` says all of it."""

    def __init__(self, run: Path, why: Finding) -> None:
        self._why = why
        super().__init__("run", str(run), why)

    def _finding(self) -> Finding:
        return self._why


class MissingFileError(ConfigError):
    """A file that a command line names is not there; `right` says it of the file, not of a
    setting."""

    def __init__(self, why: Finding) -> None:
        """why: FILE_MISSING of general_errors."""
        super().__init__(str(why.arguments["key"]), str(why.arguments["file"]), why)

    def _finding(self) -> Finding:
        return self.right


class CoreError(FlowCheckError, OSError):
    """C, or the kernel, refused a set-up call: errno, and why."""

    def __init__(self, code: int, why: str | Finding) -> None:
        """why: a finding, or the text of somebody else's error."""
        OSError.__init__(self, code, str(why))
        self._why = why

    def __str__(self) -> str:
        return str(self._why)

    @property
    def finding(self) -> Finding:
        why = self._why
        return why if isinstance(why, Finding) else ERROR_TEXT(kind=_kind(self), text=why)


class RingError(CoreError):
    """Shared memory is missing, of another layout version or of another size."""


class CaptureError(CoreError):
    """A source of frames cannot be opened or does not do what was asked."""


class MessageError(FlowCheckError):
    """Frames from a socket that are no message of ours."""


class StateError(FlowCheckError):
    """A step out of order, or a layout that does not match the model."""


class LearnError(FlowCheckError):
    """The stream contradicts what was learned from it, or does not hold what was asked of it."""


def _kind(error: BaseException) -> str:
    """StateError as "state"."""
    return type(error).__name__.removesuffix("Error").lower()


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """An OSError from within that names no file names this one: a full disk is told by write(2),
    which knows no name."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CoreError) or error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def is_disk_full(error: OSError) -> bool:
    """A file system, or what this user may have of it, is full: the next write may find room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def check(code: int, subject: object, kind: type[CoreError] = CoreError) -> int:
    """Return `code`, or raise `kind` with C's reason if it is a negative errno. subject: what was
    to be opened or changed. A file of shared memory has `check_shared_memory`."""
    if code < 0:
        raise kind(-code, core_finding(-code, subject))
    return code


def core_finding(code: int, subject: object) -> Finding:
    """Why the C core refused the last call of this thread; code: the errno that it gave."""
    from flowcheck._core import ffi, lib

    return refusal_of(ffi, lib, code, subject)


def refusal_of(ffi: Any, lib: Any, code: int, subject: object) -> Finding:
    """The last refusal in this thread of a C module (`flowcheck._core`, `flowcheck._dpdk`): the
    entry of its row, with the row's arguments."""
    told = {
        "subject": subject,
        "reason": os.strerror(code),
        "errno": errno.errorcode.get(code, str(code)),
    }
    error = lib.fc_last_error()
    row = lib.fc_error_row(error.number)
    if not error.number or error.errno_value != code:  # of an earlier call: this one gave none
        return CORE_REFUSED(**told)
    texts, numbers = (ffi.string(names).decode().split() for names in (row.texts, row.numbers))
    told |= {
        name: ffi.string(text).decode(errors="replace")
        for name, text in zip(texts, error.texts, strict=False)
    }
    told |= dict(zip(numbers, error.numbers, strict=False))
    entry = CORE_REASONS[ffi.string(row.name).decode()]
    return entry(**{name: told[name] for name in entry.names})
