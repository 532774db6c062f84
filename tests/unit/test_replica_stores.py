"""Every store of the replica's step, of going back and of another past is a kill point: what lies
in the file then is what it held before or what it holds behind, for readers and whoever goes on.

Judged by steps taken undisturbed, and by bytes: copies that hold no step are filled with noise
first, as a kill may leave anything there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from support.instants import every_instant
from support.refused_as import refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.replica_state_errors import OTHER_SECTIONS
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import peek_commit, peek_versions
from flowcheck.replica.state_file.state_file import StateFile

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.1)
BY_TORCH = OptimizerConfig(name="adamw", learning_rate=0.1, implementation="fused")
LAYOUT = Layout.of_shapes([(5, 3), (3,)])
NEWEST = 7
LAST = 9
Versions = tuple[int, ...]


def gradient(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(LAYOUT.elements).astype(np.float32)


def flat(path: Path, config: OptimizerConfig, step: int) -> bytes:
    """The parameters of a step, as a reader beside the updater is given them."""
    taken = copy_snapshot(path, config, step).parameters.values()
    return np.concatenate([value.reshape(-1).numpy() for value in taken]).tobytes()


class Followed:
    """A replica with its last steps, and what any of its steps is by an undisturbed one."""

    def __init__(self, folder: Path, config: OptimizerConfig) -> None:
        self.folder, self.path, self.config = folder, folder / "state", config
        self.weights = np.linspace(-1, 1, LAYOUT.elements).astype(np.float32)
        calm = Replica.create(folder / "calm", LAYOUT, config, self.weights)
        self.truth = {0: calm.parameters().tobytes()}
        for step in range(1, LAST + 1):
            calm.apply(step, gradient(step))
            self.truth[step] = calm.parameters().tobytes()
        self.last = calm.digest
        calm.close()
        each = 4 * (3 * LAYOUT.elements + 2 * len(LAYOUT.parameters))
        keep = 2 * each
        self.replica = Replica.create(self.path, LAYOUT, config, self.weights, keep_bytes=keep)
        for step in range(1, NEWEST + 1):
            self.replica.apply(step, gradient(step))
        self.replica.prepare()
        self.noise = np.random.default_rng(0)
        self.judged = 0

    def judge(self, allowed: set[Versions]) -> Callable[[bytes], None]:
        """A copy of the file holds one of these, whole, for a reader and for the next updater."""

        def judged(raw: bytes) -> None:
            self.judged += 1
            left = self.folder / "left"
            left.write_bytes(raw)
            found = peek_versions(left)[1]
            assert found in allowed, f"{found} is neither what was nor what is to be"
            assert peek_commit(left)[0].step == max(found), "the newest is the highest"
            self._spoil(left)
            for step in found:
                assert flat(left, self.config, step) == self.truth[step]
            again = Replica.open(left, self.config)
            assert again.versions == found
            for step in range(again.step + 1, LAST + 1):
                again.apply(step, gradient(step))
                assert again.versions == tuple(sorted(again.versions)), "nothing comes back"
            assert again.digest == self.last
            again.close()

        return judged

    def _spoil(self, path: Path) -> None:
        state = StateFile.open(path)
        whole = {commit.copy for commit in state.versions}
        for copy in range(state.copies):
            if copy not in whole:
                memory = state.bytes_of_copy(copy)
                memory[:] = self.noise.integers(0, 256, memory.size, np.uint8)
        state.close()


@pytest.fixture(params=[ADAMW, BY_TORCH], ids=["one pass", "torch"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path, request.param)
    yield made
    made.replica.close()


def test_going_back_is_one_store(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed.replica.versions == (4, 5, 6, 7)
    with every_instant(monkeypatch, followed.path, followed.judge({(4, 5, 6, 7), (4, 5)})):
        followed.replica.go_back(5)
    assert followed.judged > 1
    assert followed.replica.versions == (4, 5)


def test_a_step_is_one_store(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {(4, 5, 6, 7), (5, 6, 7), (5, 6, 7, 8)}
    with every_instant(monkeypatch, followed.path, followed.judge(allowed)):
        followed.replica.apply(8, gradient(8))
    assert followed.judged > 10


def test_a_step_behind_going_back_brings_no_abandoned_one_back(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.replica.go_back(5)
    with every_instant(monkeypatch, followed.path, followed.judge({(4, 5), (4, 5, 6)})):
        followed.replica.apply(6, gradient(6))
    assert followed.judged > 10


@pytest.mark.parametrize("step", [3, 6, NEWEST])
def test_another_past_takes_the_place_of_all_steps_in_one_store(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The base is the step's own state: what it leads to is known."""
    calm = Replica.create(followed.folder / "base", LAYOUT, followed.config, followed.weights)
    for at in range(1, step + 1):
        calm.apply(at, gradient(at))
    base = {name: array.copy() for name, array in calm.sections().items()}
    calm.close()
    allowed = {(4, 5, 6, 7), (5, 6, 7), (step,)}
    with every_instant(monkeypatch, followed.path, followed.judge(allowed)):
        followed.replica.rebase(step, base, replays=False)
    assert followed.judged > 5
    assert followed.replica.versions == (step,)


def test_a_base_that_does_not_fit_changes_nothing(followed: Followed) -> None:
    before = followed.path.read_bytes()
    with refused_as(OTHER_SECTIONS):
        followed.replica.rebase(3, {"parameters": np.zeros(1, np.float32)}, replays=False)
    assert followed.path.read_bytes() == before


def test_a_step_given_up_is_no_interrupted_one(followed: Followed) -> None:
    followed.replica.begin(8, gradient(8)).apply([0])
    followed.replica.go_back(5)
    followed.replica.close()
    followed.replica = Replica.open(followed.path, followed.config)
    assert (followed.replica.step, followed.replica.interrupted_step) == (5, 0)


LARGE = Layout.of_shapes([(90, 100), (300,)])
"""Each copy has pages that nothing else lies in."""


def read_only(state: StateFile, copy: int) -> None:
    """From here on a store into these pages ends the process, whoever makes it."""
    memory = state.bytes_of_copy(copy)
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.ctypes.data + memory.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    assert size >= 3 * mmap.PAGESIZE
    code = ctypes.CDLL(None).mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.PROT_READ)
    assert code == 0


def ended_with(path: Path, config: OptimizerConfig, *, spare_too: bool) -> int:
    """A process that makes every copy that keeps its step read-only, and takes another step;
    spare_too: the copy that one is written to as well."""
    child = os.fork()
    if not child:
        code = 99
        with suppress(BaseException):
            faulthandler.disable()
            torch.set_num_threads(1)
            replica = Replica.open(path, config)
            state = replica._open
            kept = [commit.copy for commit in state.versions[1:]]
            spare = next(copy for copy in range(state.copies) if copy not in kept)
            for copy in [*kept, *([spare] if spare_too else [])]:
                read_only(state, copy)
            replica.apply(replica.step + 1, np.ones(LARGE.elements, np.float32))
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("config", [ADAMW, BY_TORCH], ids=["one pass", "torch"])
def test_a_step_stores_nothing_where_a_step_is_kept(
    tmp_path: Path, config: OptimizerConfig
) -> None:
    """Of all stores that the others here look between: those of C and of torch as well."""
    weights = np.linspace(-1, 1, LARGE.elements).astype(np.float32)
    each = 4 * (3 * LARGE.elements + 2 * len(LARGE.parameters))
    replica = Replica.create(tmp_path / "state", LARGE, config, weights, keep_bytes=2 * each)
    for step in range(1, 8):
        replica.apply(step, np.full(LARGE.elements, step, np.float32))
    assert len(replica.versions) == replica._open.copies == 4, "the oldest gives way"
    replica.close()
    assert ended_with(tmp_path / "state", config, spare_too=False) == 0
    assert ended_with(tmp_path / "state", config, spare_too=True) == -signal.SIGSEGV
