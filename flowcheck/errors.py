"""One family of exceptions, and `check()`, the only place a C return code becomes one.

What the operator can mend is an exception that says what was tried, what was found and what to
do. What the world does to packets is a counter. Our own mistakes are assertions.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flowcheck.findings.catalog.general_errors import (
    CORE_REFUSED,
    ERROR_TEXT,
    SETTING_MISSING,
    SETTING_REFUSED,
)
from flowcheck.findings.finding import Finding

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading a text as JSON or MessagePack raises where it is not what was asked for: of other
fields or not well formed; no UTF-8; brackets thousands deep."""


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


class CoreError(FlowCheckError, OSError):
    """C, or the kernel, refused a set-up call: errno, and why."""

    def __init__(self, code: int, why: str | Finding) -> None:
        """why: a finding, or the sentence that C left."""
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


def has_no_room(error: OSError) -> bool:
    """A file system, or what this user may have of it, is full: the next write may find room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def check(code: int, what: str, kind: type[CoreError] = CoreError) -> int:
    """Return `code`, or raise `kind` with C's own sentence if it is a negative errno. For what no
    operator can mend; shared memory has `check_shared_memory`."""
    if code >= 0:
        return code
    name = errno.errorcode.get(-code, str(-code))
    raise kind(-code, CORE_REFUSED(what=what, error=core_sentence(-code), errno=name))


def core_sentence(code: int) -> str:
    """What C says of its last refusal in this thread; code: the errno that it gave."""
    from flowcheck._core import ffi, lib

    return ffi.string(lib.fc_last_error()).decode(errors="replace") or os.strerror(code)
