"""Inputs that somebody means harm with: valid ones changed in their structure, and what reading one
may not do, as the interpreter itself tells (sys.addaudithook)."""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import flowcheck
from flowcheck.errors import FlowCheckError

EXAMPLES = int(os.environ.get("FLOWCHECK_EXAMPLES", "5000"))
"""Of tests marked nightly."""
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=EXAMPLES)
MORE_BYTES = 1 << 30
"""That reading a file of some kilobytes may grow this process by, at most."""
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link")
"""Of a file; what is put into the folder named is judged by its path."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
Event = tuple[str, tuple[Any, ...]]
_WATCHED: list[list[Event]] = []
"""Of the block that runs, what the interpreter told: a hook stays for ever."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _WATCHED and (event in RUNS or event in CHANGES or event == "open"):
        _WATCHED[-1].append((event, arguments))


sys.addaudithook(_hook)


@contextmanager
def harmless(*folders: Path) -> Iterator[None]:
    """Fails where something runs a program, imports a file that belongs to no library, writes
    outside of `folders`, or takes all memory."""
    known, before = set(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told: list[Event] = []
    _WATCHED.append(told)
    try:
        yield
    finally:
        _WATCHED.pop()
    wrong = [one for one in told if _wrong(one, folders)]
    assert not wrong, wrong[:3]
    strange = [name for name in set(sys.modules) - known if not _installed(name)]
    assert not strange, strange
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MORE_BYTES, f"{grown:,} bytes"


def _wrong(one: Event, folders: tuple[Path, ...]) -> bool:
    event, arguments = one
    if event in RUNS:
        return True
    path, flags = arguments[0], arguments[2] if event == "open" else WRITES
    if not isinstance(path, str | bytes) or not int(flags or 0) & WRITES:
        return False
    place = Path(os.fsdecode(path))
    if place.parent.name == "__pycache__" or place.name == "__pycache__":
        return not _is_of_python(place)  # a module that is imported for the first time
    return place.is_absolute() and not any(place.is_relative_to(one) for one in folders)


def _installed(name: str) -> bool:
    """Of Python, of a library, or of this project."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or _is_of_python(Path(file))


def _is_of_python(file: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    own = Path(flowcheck.__file__).parent
    return any(file.is_relative_to(place) for place in (own, Path(sys.base_prefix)))


def told_or_refused(read: Callable[[], object], *folders: Path) -> object:
    """What was read; None where it was refused with a sentence. Any other error goes on."""
    with harmless(*folders):
        try:
            return read()
        except FlowCheckError as error:
            sentence = str(error)
            assert sentence and len(sentence) < 10_000, sentence  # main() shows it plain
            return None


WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [
            *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**40),
            *(0.0, -0.0, 1e308, 1e-320, float("inf"), float("nan")),
            *("", "..", "/", "/etc/passwd", "../x", "a\0b", "\ud800", "\x1b[2J", "x" * 5000),
            *("os:system", "__class__", "__reduce__", "step-1", "None", "float32", "NaN", "é"),
        ]
    ),
    st.integers(),
    st.text(max_size=20),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-2, 2**40), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything within nested dictionaries and lists."""
    found = [at] if at else []
    if isinstance(tree, dict):
        pairs: Any = tree.items()
    elif isinstance(tree, list):
        pairs = enumerate(tree)
    else:
        return found
    for key, value in pairs:
        found += places(value, (*at, key))
    return found


def within(tree: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        tree = tree[key]
    return tree


@st.composite
def changed(draw: st.DrawFn, tree: Any, weird: st.SearchStrategy[Any] = WEIRD) -> Any:
    """A tree with some of its parts replaced, taken away, doubled, renamed or exchanged."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        every = places(tree)
        if not every:
            return tree
        at = draw(st.sampled_from(every))
        parent, key = within(tree, at[:-1]), at[-1]
        match draw(st.sampled_from(["weird", "gone", "more", "other", "deeper", "renamed"])):
            case "weird":
                parent[key] = draw(weird)
            case "gone":
                del parent[key]
            case "more" if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case "more":
                parent[draw(st.text(max_size=12))] = copy.deepcopy(parent[key])
            case "other":
                parent[key] = copy.deepcopy(within(tree, draw(st.sampled_from(every))))
            case "deeper":
                parent[key] = [parent[key]] if draw(st.booleans()) else {"a": parent[key]}
            case "renamed" if isinstance(parent, dict):
                told = draw(WEIRD)
                parent[told if isinstance(told, str) else str(told)] = parent.pop(key)
    return tree


def as_json(tree: Any) -> bytes:
    """Also of what JSON has no word for: infinities, halves of surrogate pairs."""
    return json.dumps(tree).encode()


@st.composite
def torn(draw: st.DrawFn, raw: bytes) -> bytes:
    """Bytes that were changed, cut, doubled, or are others."""
    how = draw(st.sampled_from(["bit", "cut", "twice", "between", "other"]))
    at = draw(st.integers(0, max(0, len(raw) - 1)))
    match how:
        case "bit" if raw:
            return raw[:at] + bytes([raw[at] ^ 1 << draw(st.integers(0, 7))]) + raw[at + 1 :]
        case "cut":
            return raw[:at]
        case "twice":
            return raw[:at] + raw
        case "between":
            return raw[:at] + draw(st.binary(max_size=40)) + raw[at:]
    return draw(st.one_of(st.binary(max_size=200), st.just(b"[" * 200_000), st.just(b"{}")))


def hostile_json(raw: bytes) -> st.SearchStrategy[bytes]:
    """A text of JSON changed in its structure, or in its bytes."""
    return st.one_of(changed(json.loads(raw)).map(as_json), torn(raw))
