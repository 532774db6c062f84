"""The flat gradient in shared memory: two generations, and which bytes of each have arrived."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.plane.shared_memory.shared_file_errors import check_shared_memory
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range


class GenerationState(IntEnum):
    """enum fc_generation_state."""

    EMPTY = lib.FC_GENERATION_EMPTY
    OPEN = lib.FC_GENERATION_OPEN
    COMPLETE = lib.FC_GENERATION_COMPLETE
    LOST = lib.FC_GENERATION_LOST
    PARTIAL = lib.FC_GENERATION_PARTIAL


TO_APPLY = frozenset((GenerationState.COMPLETE, GenerationState.PARTIAL))
"""States of what the updater applies."""
GENERATIONS = int(lib.FC_GENERATIONS)


class GradientShard(Closeable):
    """One shard file, mapped. Generations belong to the extractor, `apply` to the updater."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.handle = handle

    @classmethod
    def create(
        cls, path: Path, *, gradient_bytes: int, unit_bytes: int = 4, held_bytes: int = 0
    ) -> GradientShard:
        """A new shard; unit_bytes: of one element, 2, 4 or 8; held_bytes: behind a gradient, for
        which no step waits. Raises RingError."""
        handle = ffi.new("struct fc_shard *")
        name = str(path).encode()
        code = lib.fc_shard_create(name, gradient_bytes, held_bytes, unit_bytes, handle)
        check_shared_memory(code, "create shard", path, new=True)
        return cls(path, handle)

    @classmethod
    def open(cls, path: Path) -> GradientShard:
        """An existing shard. Raises RingError on another magic, layout version or size."""
        handle = ffi.new("struct fc_shard *")
        code = lib.fc_shard_open(str(path).encode(), handle)
        check_shared_memory(code, "open shard", path, new=False)
        return cls(path, handle)

    @property
    def gradient_bytes(self) -> int:
        return int(self.handle.header.gradient_bytes)

    @property
    def module_buffer_bytes(self) -> int:
        """What lies behind each gradient."""
        return int(self.handle.header.module_buffer_bytes)

    @property
    def unit_bytes(self) -> int:
        return int(self.handle.header.unit_bytes)

    @property
    def applied_iteration(self) -> Iteration:
        """The last one whose gradients the replica has applied; 0 for none."""
        return Iteration(lib.fc_shard_applied(self.handle))

    def generation_state(self, generation: int) -> GenerationState:
        return GenerationState(lib.fc_shard_state(self.handle, generation))

    def iteration(self, generation: int) -> Iteration:
        """The iteration a generation is for; meaningless while it is EMPTY."""
        return Iteration(lib.fc_shard_step(self.handle, generation))

    def covered_bytes(self, generation: int) -> int:
        return int(self.handle.header.generations[generation].covered_units) * self.unit_bytes

    def conflict_bytes(self, generation: int) -> int:
        """Bytes of which two copies differ, by now (differing_copies.py tells which); an OPEN
        generation that has any is never COMPLETE, and more may be found of one that is."""
        return int(lib.fc_shard_conflict_bytes(self.handle, generation))

    def judge(self, generation: int, conflict_bytes: int) -> None:
        """The updater's word: so many `conflict_bytes` of this opening are in what it made of the
        generation, or makes."""
        lib.fc_shard_judge(self.handle, generation, conflict_bytes)

    def is_judged(self, generation: int) -> bool:
        """Whether the updater knew of all that differs in a generation when it used it."""
        judged = int(lib.fc_shard_judged(self.handle, generation))
        return judged == self.conflict_bytes(generation)

    def mark_conflicting(self, generation: int) -> None:
        """The updater's word on a generation of which two copies differ, and nothing may be used:
        its step is not taken."""
        lib.fc_shard_doubt(self.handle, generation)

    def is_conflicting(self, generation: int) -> bool:
        """Its step is not applied, as two copies differ; until it is opened anew."""
        return bool(lib.fc_shard_doubted(self.handle, generation))

    def open_count(self, generation: int) -> int:
        """How often it was opened: with another number it holds other bytes."""
        return int(lib.fc_shard_begun(self.handle, generation))

    @property
    def settled(self) -> int:
        """Grows behind bytes that are there to be read. Read behind a look at what is missing: what
        was not can be read once this is greater."""
        return int(lib.fc_shard_settled(self.handle))

    @property
    def rollback_count(self) -> int:
        """Grows behind every time that an extractor took back what one before it had left of a
        span: coverage that was seen since this was smaller may be of bytes that change."""
        return int(lib.fc_shard_undone(self.handle))

    def generation_of(self, iteration: Iteration) -> int | None:
        """The generation that holds it, in any state but EMPTY."""
        for generation in range(GENERATIONS):
            # The state behind the number: an older one would be of what it held before.
            if (
                self.iteration(generation) == iteration
                and self.generation_state(generation) != GenerationState.EMPTY
            ):
                return generation
        return None

    def gradient(self, generation: int) -> NDArray[np.uint8]:
        """[gradient_bytes], registration order; a view, valid until `close()`."""
        data = lib.fc_shard_data(self.handle, generation)
        return np.frombuffer(ffi.buffer(data, self.gradient_bytes), np.uint8)

    def module_buffers(self, generation: int) -> NDArray[np.uint8] | None:
        """[module_buffer_bytes] a copy of what follows the gradient; None: a part is missing."""
        begun, size = self.open_count(generation), self.module_buffer_bytes
        if not size or not lib.fc_shard_has_module_buffers(self.handle, generation):
            return None
        data = lib.fc_shard_data(self.handle, generation) + self.gradient_bytes
        found = np.frombuffer(ffi.buffer(data, size), np.uint8).copy()
        # Another opening, or a copy that differs and came meanwhile: nobody knows which is right.
        same = self.open_count(generation) == begun and lib.fc_shard_has_module_buffers(
            self.handle, generation
        )
        return found if same else None

    def missing(self, generation: int) -> tuple[Range, ...]:
        """Byte ranges of the gradient that are not there, ascending."""
        return tuple(self._missing(generation))

    def _missing(self, generation: int) -> Iterator[Range]:
        bounds = ffi.new("uint64_t[2]")
        next_missing = lib.fc_shard_next_missing
        while next_missing(self.handle, generation, bounds[1], bounds, bounds + 1):
            yield int(bounds[0]), int(bounds[1])

    def begin(self, generation: int, iteration: Iteration) -> None:
        """Forgets what the generation held and opens it for `iteration`."""
        lib.fc_shard_begin(self.handle, generation, iteration)

    def finish(self, generation: int) -> bool:
        """Publishes an OPEN generation as COMPLETE if every byte is there; is it COMPLETE?"""
        return bool(lib.fc_shard_finish(self.handle, generation))

    def mark_lost(self, generation: int) -> None:
        """Says that the generation's iteration will never be whole, and is not applied."""
        lib.fc_shard_lose(self.handle, generation)

    def mark_partial(self, generation: int) -> None:
        """Says that nothing more of the iteration comes, and that what came of it is applied.
        What is missing is zero from now on."""
        self.with_zeros(generation)
        lib.fc_shard_make_partial(self.handle, generation)

    def with_zeros(self, generation: int) -> NDArray[np.uint8]:
        """The gradient of an OPEN generation, zero where nothing came by now."""
        gradient = self.gradient(generation)
        for start, stop in self._missing(generation):
            gradient[start:stop] = 0
        return gradient

    def clear(self) -> None:
        """Forgets every generation and frontier: what follows is of another job."""
        lib.fc_shard_clear(self.handle)

    def apply(self, iteration: Iteration) -> None:
        """The updater says that this one and all before it are in the replica."""
        lib.fc_shard_apply(self.handle, iteration)

    def close(self) -> None:
        lib.fc_shard_close(self.handle)
