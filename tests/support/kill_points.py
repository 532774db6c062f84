"""Every store into shared memory is a kill point: for each of them, what a restart makes of it.

The C core is built by clang with the thread sanitizer's instrumentation and hooks of our own
(kill_points.c) instead of its runtime. A hook hears of every store before it happens; those into
watched maps are kept in their order as (word, value), a copy or a fill as one store per 8-byte
word. So a piece of work that is done once tells what memory looked like before its k-th store, for
every k: that is what a process killed there leaves. `explore` puts each of these states into the
maps, has the work done again as after a restart, and compares.

Instructions that the sanitizer does not hear of are left out of the build: AVX2 and AVX-512 twins
(`__builtin_cpu_supports` is 0, so the plain ones are chosen) and the copies past the caches
(FLOWCHECK_COPY=plain). That none is missed is checked: the stores kept must turn the memory before
the work into the memory after it.

A test builds once and runs a module on the build, in a process of its own:

    build = kill_points.build(folder)
    kill_points.run(build, "support.extract_kills", "scenario")

and the module's `main` does, with files that it made and mapped:

    maps = [kill_points.mapped(ring.handle.map), kill_points.mapped(staging.handle.map), ...]
    kill_points.explore(maps, work, outcome, twice=16)

work() opens what a restarted process opens (an Extractor, a Parser), does all there is to do and
closes it; it must need nothing but the maps. outcome() is what a reader finds afterwards, as
something that `==` compares; words that mean nothing are not part of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
HOOKS = Path(__file__).resolve().with_suffix(".c")
FLAGS = (
    "-O1",
    "-fsanitize=thread",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-D__builtin_cpu_supports(x)=0",
    "-Wno-macro-redefined",
    "-Wno-builtin-macro-redefined",
)
WRAPPED = "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
import build_ffi
from pathlib import Path
hooks, wrapped, package = sys.argv[2:5]
build_ffi.STEP, build_ffi.STEP_HEADERS = build_ffi.CORE / "none", ()  # half the time, no shared map
ffi = build_ffi.core_builder(tuple(sys.argv[5:]))
name, source, extension, words = ffi._assigned_source
words["sources"].append(hooks)
words["extra_link_args"] = [wrapped]
build_ffi.compile_into(ffi, Path(package))
"""
OFFSET_BITS = 48
"""As in kill_points.c."""
STORE = np.dtype([("where", np.uint64), ("value", np.uint64)])


def lacks() -> str:
    """Why nothing can be built here; empty: it can."""
    return "" if shutil.which("clang") else "clang, which instruments stores, is not installed"


def reordered(packets: Sequence[T], window: int, seed: int) -> list[T]:
    """Shuffled within windows that follow each other."""
    dice, out = random.Random(seed), list(packets)
    for at in range(0, len(out), window):
        part = out[at : at + window]
        dice.shuffle(part)
        out[at : at + window] = part
    return out


def build(folder: Path) -> Path:
    """A copy of the package in `folder` with an instrumented core, for PYTHONPATH; several test
    processes may ask for one folder at once. Raises CalledProcessError."""
    kept = folder / f"kill-points-{_sources()}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kill-points.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            making = folder / f"{kept.name}.tmp"
            shutil.rmtree(making, ignore_errors=True)
            package = making / "flowcheck"
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(REPOSITORY / "flowcheck", package, ignore=ignored)
            words = [str(REPOSITORY / "dpdk_ext"), str(HOOKS), WRAPPED, str(package), *FLAGS]
            subprocess.run(
                [sys.executable, "-c", BUILD, *words],
                env=os.environ | {"CC": "clang"},
                check=True,
                capture_output=True,
                timeout=300,
            )
            making.rename(kept)
    return kept


def _sources() -> str:
    """Of all that a build is made of."""
    digest = hashlib.sha256()
    paths = [HOOKS, Path(__file__)]
    paths += [path for path in (REPOSITORY / "dpdk_ext").rglob("*") if path.suffix in (".c", ".h")]
    paths += (REPOSITORY / "flowcheck").rglob("*.py")
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(built: Path, module: str, *words: str, limit_s: float = 300) -> str:
    """`python -m module words` on the build; what it prints. Raises AssertionError with all it
    said if it fails."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(built), str(REPOSITORY / "tests")]),
        "PYTHONSAFEPATH": "1",
        "FLOWCHECK_COPY": "plain",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def mapped(fc_map: Any) -> NDArray[np.uint64]:
    """A `struct fc_map` as words, writable."""
    from flowcheck._core import ffi

    return np.frombuffer(ffi.buffer(fc_map.base, int(fc_map.bytes)), np.uint64)


class Difference(AssertionError):
    """A restart after a kill leads elsewhere."""


@dataclass
class Explored:
    """How much was tried."""

    stores: int
    """Of the undisturbed work: each of them a kill point."""
    second_kills: int


class Stores(NamedTuple):
    """What was stored, in order: map, index of the word in it, value."""

    maps: NDArray[np.int64]
    words: NDArray[np.int64]
    values: NDArray[np.uint64]


class Recorder:
    """The hooks of the loaded core, watching these maps."""

    def __init__(self, maps: Sequence[NDArray[np.uint64]]) -> None:
        from flowcheck import _core

        self._hooks = ctypes.CDLL(_core.__file__)
        self._hooks.kill_points_end.restype = ctypes.c_uint64
        self._hooks.kill_points_kept.restype = ctypes.c_void_p
        self._hooks.kill_points_forget()
        for one in maps:
            base = ctypes.c_void_p(one.ctypes.data)
            self._hooks.kill_points_watch(base, ctypes.c_uint64(one.nbytes))

    def stores_of(self, work: Callable[[], None]) -> Stores:
        """Does `work`; every store into the maps, in order."""
        self._hooks.kill_points_begin()
        try:
            work()
        finally:
            count = self._hooks.kill_points_end()
        if not count:
            return Stores(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
        at = self._hooks.kill_points_kept()
        kept = np.frombuffer((ctypes.c_char * (count * STORE.itemsize)).from_address(at), STORE)
        where = kept["where"]
        maps = (where >> np.uint64(OFFSET_BITS)).astype(np.int64)
        words = (where & np.uint64((1 << OFFSET_BITS) - 1)).astype(np.int64) // 8
        return Stores(maps, words, kept["value"].copy())


class Image:
    """What maps hold at an instant, and the way back to it."""

    def __init__(self, maps: Sequence[NDArray[np.uint64]]) -> None:
        self._maps = maps
        self._kept = [one.copy() for one in maps]

    def store(self, which: int, word: int, value: int) -> None:
        """The next store happens: in the image and in the maps."""
        self._kept[which][word] = value
        self._maps[which][word] = value

    def restore(self, stores: Stores, count: int | None = None) -> None:
        """Takes back what these stores changed since, or the first `count` of them."""
        for which, (kept, own) in enumerate(zip(self._kept, self._maps, strict=True)):
            words = stores.words[:count][stores.maps[:count] == which]
            own[words] = kept[words]

    def put(self, stores: Stores, count: int) -> None:
        """The maps as the first `count` of these stores leave them; the image stays."""
        for which, own in enumerate(self._maps):
            here = stores.maps[:count] == which
            own[stores.words[:count][here]] = stores.values[:count][here]

    def differs(self) -> str:
        """Where the maps are not as the image; empty: nowhere."""
        for which, (kept, own) in enumerate(zip(self._kept, self._maps, strict=True)):
            unlike = np.flatnonzero(kept != own)
            if len(unlike):
                return f"map {which}, {len(unlike)} words, the first at byte {8 * unlike[0]}"
        return ""


def explore(
    maps: Sequence[NDArray[np.uint64]],
    work: Callable[[], None],
    outcome: Callable[[], Any],
    *,
    instant: Callable[[bool], None] = lambda again: None,
    twice: int = 0,
    seed: int = 0,
    every: int = 1,
) -> Explored:
    """Kills `work` before each of its stores, has it done again, and compares the outcomes.

    instant: looks at the maps as a kill leaves them, before anybody repairs them, as readers do
    that go on meanwhile, and raises where they are misled; True: it was killed twice. twice:
    second kills per first one, at stores of the repetition drawn by `seed`; -1: at every one of
    them. every: take each n-th store alone, where all of them are too many. Raises Difference with
    the store's number where a repetition leads elsewhere, or fails.
    """
    recorder, image, dice = Recorder(maps), Image(maps), random.Random(seed)
    stores = recorder.stores_of(work)
    right = outcome()
    _check_all_were_heard(maps, image, stores)
    image.restore(stores)
    second_kills = 0
    total = len(stores.words)
    for k in range(total + 1):
        if k % every == 0 or k == total:
            instant(False)
            again = _repeated(recorder, work, outcome, right, f"killed before store {k} of {total}")
            image.restore(again)
            for second in _drawn(dice, len(again.words), twice):
                image.put(again, second)
                instant(True)
                words = f"killed before store {k} of {total} and again before store {second} of "
                last = _repeated(
                    recorder, work, outcome, right, f"{words}{len(again.words)} of the repetition"
                )
                image.restore(last)
                image.restore(again, second)
                second_kills += 1
        if k < total:
            image.store(int(stores.maps[k]), int(stores.words[k]), int(stores.values[k]))
    return Explored(total, second_kills)


def _drawn(dice: random.Random, count: int, twice: int) -> Iterator[int]:
    if twice < 0 or count <= twice:
        return iter(range(count))
    return iter(sorted(dice.sample(range(count), twice)))


def _repeated(
    recorder: Recorder,
    work: Callable[[], None],
    outcome: Callable[[], Any],
    right: Any,
    when: str,
) -> Stores:
    try:
        stores = recorder.stores_of(work)
        found = outcome()
    except Exception as error:
        raise Difference(f"{when}: the repetition failed: {error!r}") from error
    if found != right:
        raise Difference(f"{when}: {_unlike(right, found)}")
    return stores


def _unlike(right: Any, found: Any) -> str:
    if isinstance(right, dict):
        unlike = {key: (right[key], found.get(key)) for key in right if right[key] != found[key]}
        return f"(undisturbed, found) {unlike}"[:2000]
    return f"undisturbed {right}, found {found}"[:2000]


def _check_all_were_heard(maps: Sequence[NDArray[np.uint64]], image: Image, stores: Stores) -> None:
    """What was kept must make of the memory before the work the memory after it."""
    after = [one.copy() for one in maps]
    image.restore(stores)
    if unheard := image.differs():
        raise Difference(f"stores that no hook heard of: {unheard}")
    image.put(stores, len(stores.words))
    for which, (own, want) in enumerate(zip(maps, after, strict=True)):
        if not np.array_equal(own, want):
            raise Difference(f"map {which}: the stores kept do not lead to what was found")
