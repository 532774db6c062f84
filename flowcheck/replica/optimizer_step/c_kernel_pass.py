"""One pass of the C kernel over the flat state: its tables, its threads, and the digests it
returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.replica import state_digest
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.worker_threads import tensor_blocks, thread_number, thread_of_piece

ITEM = np.dtype([("first", "u8"), ("elements", "u8"), ("row", "u4"), ("reserved", "u4")])
"""dtype of `struct fc_step_item` (dpdk_ext/step/fc_step.h): one block of one tensor."""
assert ITEM.itemsize == ffi.sizeof("struct fc_step_item")
ELEMENT_BYTES = 4
ALONE_ELEMENTS = 1 << 15
"""Elements up to which one thread does a pass: it takes no longer than waking a second thread,
tens of microseconds."""
_BYTES = state_digest.DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class StepArguments:
    """What the C kernel makes a step with, beside the state."""

    table: np.ndarray
    """[parameters] of dtype STEP_ROW (c_kernel_args.py)."""
    root: int
    """Number of the square root, as `square_root_kind`."""
    gradient: np.ndarray
    """[elements] float32, as the parameters lie in the state."""
    wide: np.ndarray | None = None
    """[parameters] of dtype STEP_DOUBLES (cuda_kernel_choice.py); None: the arithmetic does not
    need it."""


def step_pieces(
    arguments: StepArguments,
    items: np.ndarray,
    sections: Sequence[str],
    source: Mapping[str, np.ndarray],
    target: Mapping[str, np.ndarray],
) -> None:
    """Steps pieces of tensors that lie in arrays of their own, in the calling thread. items: of
    dtype ITEM; the gradient lies as they do."""
    job = _job(arguments, items, sections, source, target)
    job.count = len(items)
    lib.fc_step_work(job)


def _job(
    arguments: StepArguments,
    items: np.ndarray,
    sections: Sequence[str],
    source: Mapping[str, np.ndarray],
    target: Mapping[str, np.ndarray],
) -> Any:
    """Without digests; the caller keeps what it points to."""
    job = ffi.new("struct fc_step_job *")
    job.rows = _at("struct fc_step_row *", arguments.table)
    wide = arguments.wide
    job.wide = ffi.NULL if wide is None else _at("struct fc_step_wide *", wide)
    job.items = _at("struct fc_step_item *", items)
    job.gradient = _at("float *", arguments.gradient)
    for place, name in enumerate(sections):
        getattr(job, "from")[place] = _at("float *", source[name])
        job.to[place] = _at("float *", target[name])
    job.sections, job.root = len(sections), arguments.root
    return job


class KernelPlan:
    """The blocks of all tensors of a float32 layout. Each block has its own digest."""

    def __init__(self, layout: Layout, sections: Sequence[str]) -> None:
        """sections: names of those with one entry per element of the layout, parameters first."""
        self.sections = tuple(sections)
        cut = tensor_blocks(layout, ELEMENT_BYTES, state_digest.BLOCK_BYTES)
        self.items = np.array([(*each, 0) for each in cut], ITEM)
        self.elements = self.items["elements"].copy()
        first = np.searchsorted(self.items["row"], np.arange(len(layout.parameters) + 1))
        self._alone = np.flatnonzero(np.diff(first) == 1)
        """Parameters of one block."""
        self._of_alone = first[self._alone]
        self._several = [(int(p), *first[p : p + 2]) for p in np.flatnonzero(np.diff(first) != 1)]
        self._parameters = len(layout.parameters)
        self._owners, self._threads = np.empty(0, np.intp), 0

    def begin(
        self,
        arguments: StepArguments,
        source: Mapping[str, np.ndarray],
        target: Mapping[str, np.ndarray],
    ) -> KernelPass:
        """Prepares a pass over all blocks. The gradient is read when its parameters are stepped.

        source, target: {section: flat float32 array} before and after the step.
        """
        found = np.zeros((len(self.items), len(self.sections), state_digest.DIGEST_BYTES), np.uint8)
        job = _job(arguments, self.items, self.sections, source, target)
        job.digests = _at("uint8_t *", found)
        return KernelPass(self, job, found, (arguments, source, target))

    def of(self, parameters: Sequence[int]) -> np.ndarray:
        """Indices of the items of these parameters."""
        return np.flatnonzero(np.isin(self.items["row"], parameters))

    def owners(self, threads: int) -> np.ndarray:
        """[item] number of the thread that steps it."""
        if len(self._owners) == 0 or self._threads != threads:
            self._owners, self._threads = (
                thread_of_piece(self.elements * ELEMENT_BYTES, threads),
                threads,
            )
        return self._owners

    def digests(self, found: np.ndarray) -> list[bytes]:
        """As `KernelPass.digests`. found: uint8 [item][section][16]."""
        made: list[bytes] = []
        for place in range(len(self.sections)):
            own = np.empty((self._parameters, _BYTES), np.uint8)
            own[self._alone] = found[self._of_alone, place]
            for parameter, first, last in self._several:
                blocks = [found[i, place].tobytes() for i in range(first, last)]
                own[parameter] = np.frombuffer(state_digest.combine_digests(blocks), np.uint8)
            flat = own.tobytes()
            made += [flat[at : at + _BYTES] for at in range(0, len(flat), _BYTES)]
        return made


class KernelPass:
    """A pass in progress; parameters can be stepped in several calls."""

    def __init__(
        self,
        flat: KernelPlan,
        job: Any,
        found: np.ndarray,
        alive: tuple[Any, ...],
    ) -> None:
        """alive: memory that C reads."""
        self._flat, self._job, self._found, self._alive = flat, job, found, alive
        self._left = np.ones(len(flat.items), np.bool_)

    def run(
        self,
        items: np.ndarray | None = None,
        executor: Executor | None = None,
        threads: int = 1,
        *,
        joins: bool = False,
    ) -> None:
        """Steps the items that are not done yet. items: indices; None: all. joins: the calling
        thread is one of the `threads` (worker_threads.py)."""
        wanted = self._left if items is None else self._left & _mask(items, len(self._left))
        chosen = np.flatnonzero(wanted).astype(np.uint32)
        if not chosen.size:
            return
        alone = threads == 1 or chosen.size == 1
        if executor is None or alone or self._flat.elements[chosen].sum() <= ALONE_ELEMENTS:
            _work([self._of(chosen)])
        else:
            owner = self._flat.owners(threads)[chosen]
            jobs = [self._of(chosen[owner == thread]) for thread in range(threads)]
            others = [executor.submit(_work, jobs) for _ in range(threads - joins)]
            if joins:
                _work(jobs)
            for done in others:
                done.result()
        self._left[chosen] = False

    def _of(self, chosen: np.ndarray) -> tuple[Any, np.ndarray]:
        """The job of these items, and the memory that it reads their numbers from."""
        job = ffi.new("struct fc_step_job *", self._job[0])
        job.chosen, job.count, job.next = _at("uint32_t *", chosen), chosen.size, 0
        return job, chosen

    def digests(self) -> list[bytes]:
        """Digests of all tensors, those of the parameters first, as `state_digest.tensor_digests`.
        All items must be done."""
        assert not self._left.any()
        return self._flat.digests(self._found)


def _work(jobs: Sequence[tuple[Any, np.ndarray]]) -> None:
    """The calling thread's own, then what others have left of theirs."""
    mine = thread_number()
    for turn in range(len(jobs)):
        job, _ = jobs[(mine + turn) % len(jobs)]
        lib.fc_step_work(job)


def _mask(items: np.ndarray, count: int) -> np.ndarray:
    mask = np.zeros(count, np.bool_)
    mask[items] = True
    return mask


def _at(kind: str, array: np.ndarray) -> Any:
    assert array.flags.c_contiguous
    return ffi.cast(kind, ffi.from_buffer(array))
