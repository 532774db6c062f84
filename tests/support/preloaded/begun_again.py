"""A command that drops root's privileges executes itself again as another user. Where it is a fork
it begins again instead, with what it has loaded and nothing else: its process is then what the
other program's would be."""

from __future__ import annotations

import copy
import ctypes
import fcntl
import functools
import gc
import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from support.preloaded import fresh_process
from support.preloaded.asked import as_bytes, may_differ
from support.preloaded.request import Inherited

from flowcheck.stages.privilege.privilege_syscalls import rights_of

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4  # linux/prctl.h
AGAIN = ("-P", "-s", "-m", "flowcheck")
"""Words behind `python` (capture_starter.py, PYTHON_COMMAND)."""
CONTAINERS = (list, dict, set, deque)
_libc = ctypes.CDLL(None)
_execve = os.execve


@dataclass
class Kept:
    """What FlowCheck's modules held when they were loaded."""

    base: Sequence[str]
    """The path of imports but its first folder."""
    values: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    """(a module's names, name, value)"""
    contents: list[tuple[Any, Any]] = field(default_factory=list)
    """(what can change, a copy of it)"""
    finalizers: set[Any] = field(default_factory=set)

    @classmethod
    def now(cls, base: Sequence[str]) -> Kept:
        made = cls(base, finalizers=set(weakref.finalize._registry))  # type: ignore[attr-defined]
        for names in _modules():
            for name, value in names.items():
                if name.startswith("__"):
                    continue
                made.values.append((names, name, value))
                if isinstance(value, CONTAINERS):
                    made.contents.append((value, copy.copy(value)))
                elif _is_own(value):
                    inside = {key: _copied(one) for key, one in vars(value).items()}
                    made.contents.append((vars(value), inside))
        return made

    def restore(self) -> None:
        """As a program that has just loaded them."""
        for names, name, value in self.values:
            if names.get(name) is not value:
                names[name] = value
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
        for value, before in self.contents:
            value.clear()
            fill = value.extend if isinstance(value, list | deque) else value.update
            fill(before)
        for finalizer in set(weakref.finalize._registry) - self.finalizers:  # type: ignore[attr-defined]
            finalizer.detach()

    def execute(self, path: Any, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        """os.execve, for the words that begin FlowCheck again."""
        told, surroundings = tuple(words), as_bytes(environment)
        same = path == sys.executable and told[1 : len(AGAIN) + 1] == AGAIN
        alone = len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
        if not (same and alone and not rights_of().permitted and may_differ(surroundings)):
            _execve(path, told, environment)
        gc.freeze()  # what is left of the earlier program closes no file of this one
        _close_files()
        _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        _libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
        self.restore()
        fresh_process.surround(surroundings)
        fresh_process.set_signals(Inherited.of_caller().ignored)
        fresh_process.open_streams()
        fresh_process.name_program(told[1:], self.base)
        fresh_process.run_program(told[1:], self)


def _modules() -> list[dict[str, Any]]:
    return [vars(m) for n, m in sys.modules.items() if n.partition(".")[0] == "flowcheck"]


def _is_own(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] == "flowcheck" and hasattr(value, "__dict__")


def _copied(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, CONTAINERS) else value


def _close_files() -> None:
    """Those that the kernel closes where a program is executed."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - it is gone once it is read
        with suppress(OSError):
            if fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(int(name))
