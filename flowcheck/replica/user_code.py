"""Python files that a user names, with functions that FlowCheck is to call."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import (
    ENDED_AT_IMPORT,
    FORM,
    NAME_MISSING,
    NO_FILE,
    NO_FUNCTION,
    NOT_A_PY_FILE,
    NOT_CALLABLE,
    OF_A_CHECKPOINT,
    RAISED,
    RAISED_IN_FILE,
)
from flowcheck.findings.finding import Finding

MODULE = "_user_"
"""Put before a file's own name, so that a script called random.py hides no module of Python's."""
MOST_NAMES = 8
"""Names of a file's functions that an error lists. A choice of layout."""
LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
"""Where sysconfig says that Python's own files, and installed ones, lie."""
OWN_FILES = Path(__file__).parents[1]
FORBIDDEN = "FLOWCHECK_USER_CODE_FORBIDDEN"
"""In the environment of a command that kept root's rights, and of what it starts: the finding, as
JSON, why no code of the user's is called there (stages/privilege/drop_privileges.py)."""


_REFUSED: ContextVar[Finding | None] = ContextVar("refused", default=None)


@contextmanager
def user_code_forbidden(why: Finding | None) -> Iterator[None]:
    """Code of the user's is refused while this runs, in this thread. why: what the error says of
    it; None: it is not refused."""
    token = _REFUSED.set(why)
    try:
        yield
    finally:
        _REFUSED.reset(token)


class UntrustedCode(str):
    """Code that a file from outside names. It is never called; whoever states the same words in a
    job file, or vouches for the file, has plain text of it (optimizer/user_code_trust.py)."""

    __slots__ = ()


def plain_text(value: object) -> str:
    """For msgspec, which writes no kinds of text but Python's own. Raises NotImplementedError for
    what is no text."""
    if isinstance(value, UntrustedCode):
        return str.__str__(value)
    raise NotImplementedError(f"a {type(value).__name__} is not written")


def load_callable(key: str, where: str) -> Callable[..., Any]:
    """The function at "file.py:function" or "package.module:function", both as seen from where the
    command runs; `key` is what it was given as. Raises ConfigError for whatever does not work out,
    for a file that ends the program while it is imported, for code that only a checkpoint names
    (UntrustedCode), and in a process that has more rights than the user's (FORBIDDEN)."""
    if isinstance(where, UntrustedCode):
        raise ConfigError(key, plain_text(where), OF_A_CHECKPOINT())
    if (why := _forbidden() or _REFUSED.get()) is not None:
        raise ConfigError(key, where, why)
    place, colon, _ = where.rpartition(":")
    if not colon:
        raise ConfigError(key, where, FORM())
    try:
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise ConfigError(key, where, NO_FILE(Path(place).absolute()))
            found = _named(key, where, import_file(Path(place)))
        elif Path(place).is_file() or not all(map(str.isidentifier, place.split("."))):
            raise ConfigError(key, where, NOT_A_PY_FILE(place))
        else:
            sys.path.insert(0, "")  # as `python -m` has it
            try:
                found = pkgutil.resolve_name(where)
            finally:
                sys.path.remove("")
    except SystemExit as error:
        raise ConfigError(key, where, ENDED_AT_IMPORT(str(error.code))) from error
    except ConfigError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(key, where, user_error_finding(error)) from error
    if not callable(found):
        raise ConfigError(key, where, NOT_CALLABLE())
    result: Callable[..., Any] = found
    return result


def _forbidden() -> Finding | None:
    told = os.environ.get(FORBIDDEN)
    return msgspec.json.decode(told, type=Finding) if told else None


def user_error_text(error: BaseException) -> str:
    """What the user's code raised, with the user's own names of files."""
    return f"{type(error).__name__}: {error}".replace(MODULE, "")


def user_error_finding(error: BaseException) -> Finding:
    """What the user's code raised, and in which line of which file of the user's."""
    place = _place_of(error)
    within = None if place is None else RAISED_IN_FILE(file=place[0], line=place[1])
    return RAISED(error=user_error_text(error), place=within)


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """(file, line) of the innermost call in a file that is neither FlowCheck's, nor Python's, nor
    an installed library's. None: there is none, as of a file with a syntax error, whose own text
    names its line."""
    others: list[str | Path] = [
        *site.getsitepackages(),
        *(sysconfig.get_path(one) for one in LIBRARIES),
        OWN_FILES,
    ]
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file[:1] != "<" and not any(Path(file).is_relative_to(one) for one in others):
            found = (file, line)
    return found


def _named(key: str, where: str, module: ModuleType) -> Any:
    """Raises ConfigError with what there is instead."""
    place, _, name = where.rpartition(":")
    if hasattr(module, name):
        return getattr(module, name)
    own = [n for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__]
    there = ", ".join(own[:MOST_NAMES]) + ", ..." * (len(own) > MOST_NAMES)
    names = there or NO_FUNCTION()
    raise ConfigError(key, where, NAME_MISSING(file=place, name=name, names=names))


def import_file(path: Path) -> ModuleType:
    """The file as a module; its own imports are looked up beside it, and of the arguments of this
    program it sees none. Raises FileNotFoundError, ImportError, and whatever the file raises."""
    path = path.resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"{MODULE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    arguments, sys.argv = sys.argv, [str(path)]  # ours are none of a training script's
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # where dataclasses look for their own module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.argv = arguments
        sys.path.remove(str(path.parent))
    return module
