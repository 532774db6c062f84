"""The 2-norm of gradients as torch.nn.utils.get_total_norm has it on a GPU, bit for bit: the norm
of each tensor, then the norm of those norms (torch/nn/utils/clip_grad.py).

Which block of threads sums which elements stands here, in which order a block adds them in
dpdk_ext/step/fc_norm.h, with the sources in torch.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.replica.param_layout import Layout

PART = np.dtype(
    [("first", "u8"), ("end", "u8"), ("stride", "u8")]
    + [(name, "u4") for name in ("threads", "beside", "tail", "order")]
)
"""struct fc_norm_part."""
assert PART.itemsize == ffi.sizeof("struct fc_norm_part")
LANES, THREADS = 4, 512
"""Elements that a thread loads at once; most threads of a block."""
CHUNK = 65536
"""Elements of a block of foreach (MultiTensorApply.cuh, kChunkSize)."""
PROCESSORS, THREADS_OF_PROCESSOR = 132, 2048
"""Multiprocessors of an H100 (SXM) or H200, and what each holds. They decide how many blocks sum a
tensor of more than 131,072 elements alone."""
VALUES_LEAST, VALUES_MOST = 16, 256
"""Elements of a thread if several blocks share a tensor (setReduceConfig)."""
VECTORS_FROM = 128
"""Elements from which vectors are loaded; before torch 2.10 one more."""
HALVES_SINCE = (2, 10)
"""The release of torch whose Reduce.cuh halves the last 32 sums; before, neighbours were added
(headers of the wheels 2.6.0, 2.9.1, 2.10.0, 2.11.0, 2.13.0 and 2.14.0)."""
ALONE_ELEMENTS = 1 << 15
"""Elements. So few take no longer than it takes to wake a thread."""

_Parts = list[tuple[int, ...]]


def foreach_parts(first: int, elements: int) -> _Parts:
    """A tensor's blocks in torch._foreach_norm. first: of its elements in the flat values."""
    block = (LANES * THREADS, THREADS, int(elements % LANES == 0), 0, lib.FC_NORM_FOREACH)
    return [
        (at, min(at + CHUNK, first + elements), *block)
        for at in range(first, first + elements, CHUNK)
    ]


def alone_parts(first: int, elements: int, *, halves: bool) -> _Parts:
    """A tensor's blocks in torch.linalg.vector_norm. halves: torch is of HALVES_SINCE or later."""
    order = lib.FC_NORM_ALONE if halves else lib.FC_NORM_ALONE_EARLIER
    vectors = elements >= VECTORS_FROM + (not halves)
    threads = threads_alone(elements, vectors=vectors)
    blocks = _blocks_alone(elements, threads)
    tail = elements % LANES if vectors else 0
    end = first + elements - tail
    turn = LANES * threads
    alike = (end, turn * blocks, threads, int(vectors))
    return [(first + turn * block, *alike, 0 if block else tail, order) for block in range(blocks)]


def threads_alone(elements: int, *, vectors: bool) -> int:
    """Of a block: the power of two at or below what there is to load."""
    loads = elements // LANES if vectors else elements
    return min(1 << max(loads, 1).bit_length() - 1, THREADS)


def _blocks_alone(elements: int, threads: int) -> int:
    each = -(-elements // threads)
    if each < VALUES_MOST:
        return 1
    fit = PROCESSORS * (THREADS_OF_PROCESSOR // threads)
    return max(min(fit, -(-each // VALUES_LEAST)), -(-each // VALUES_MOST))


class CudaGradientNorm:
    """The norm of the gradients of a float32 layout."""

    def __init__(self, layout: Layout, *, foreach: bool, halves: bool) -> None:
        """foreach: as the script has it in clip_grad_norm_; halves: as `alone_parts` has it."""
        self._halves = halves
        self._own: list[tuple[int, int]] = []
        """[parameter] (threads of the block that adds what its blocks have, its order)"""
        parts: _Parts = []
        owner: list[int] = []
        for number, p in enumerate(layout.parameters):
            if foreach:
                made = foreach_parts(p.start, p.elements)
                self._own.append((THREADS, int(lib.FC_NORM_FOREACH)))
            else:
                made = alone_parts(p.start, p.elements, halves=halves)
                self._own.append((made[0][3], made[0][-1]))
            parts += made
            owner += [number] * len(made)
        self._parts, self._owner = np.array(parts, PART), np.array(owner, np.intp)

    def of(
        self,
        gradient: np.ndarray,
        taken: np.ndarray,
        executor: Executor | None = None,
        threads: int = 1,
        *,
        joins: bool = False,
    ) -> np.float32:
        """gradient: flat, as the parameters lie; taken: [parameters] bool, those that have one, at
        least one. joins: the caller is the first of the threads (worker_threads.py)."""
        mask = taken[self._owner]
        owner, parts = self._owner[mask], self._parts[mask]
        alone = executor is None or threads == 1 or gradient.size <= ALONE_ELEMENTS
        sums = _summed(gradient, parts, None if alone else executor, threads - joins, joins)
        ends = np.searchsorted(owner, np.arange(len(taken) + 1))
        norms = [
            _root(sums[ends[number] : ends[number + 1]], *self._own[number])
            for number in np.flatnonzero(taken)
        ]
        return norm_alone(np.array(norms, np.float32), halves=self._halves)


def norm_alone(values: np.ndarray, *, halves: bool) -> np.float32:
    """torch.linalg.vector_norm of [n] float32. halves: as `alone_parts` has it."""
    parts = np.array(alone_parts(0, values.size, halves=halves), PART)
    sums = _summed(values, parts, None, 0, joins=True)
    return _root(sums, int(parts["threads"][0]), int(parts["order"][0]))


def _root(sums: np.ndarray, threads: int, order: int) -> np.float32:
    return np.float32(lib.fc_norm_root(_at("float *", sums), sums.size, threads, order))


def _summed(
    values: np.ndarray, parts: np.ndarray, executor: Executor | None, others: int, joins: bool
) -> np.ndarray:
    """[part] float32, by the caller if it joins or there is no executor, and `others` threads."""
    sums = np.empty(len(parts), np.float32)
    job = ffi.new("struct fc_norm_job *")
    job.values, job.parts = _at("float *", values), _at("struct fc_norm_part *", parts)
    job.sums, job.count = _at("float *", sums), len(parts)
    helping = [executor.submit(lib.fc_norm_work, job) for _ in range(others)] if executor else []
    if joins or not helping:
        lib.fc_norm_work(job)
    for done in helping:
        done.result()
    return sums


def _at(kind: str, array: np.ndarray) -> Any:
    assert array.flags.c_contiguous
    return ffi.cast(kind, ffi.from_buffer(array))
