"""Collectives with a block per rank: all-gather and reduce-scatter, under all of torch's names."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from flowcheck.lab.trainer.group import (
    ALL_GATHER,
    BROADCAST,
    REDUCE_SCATTER,
    RoceGroup,
    Tensors,
    fits,
    only,
)
from flowcheck.lab.trainer.memory import as_bytes, numbers, reduction_of
from flowcheck.lab.trainer.work import RoceWork


class BlockGroup(RoceGroup):
    """Adds them to the group."""

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> RoceWork:
        """Every rank's tensor, one after the other in `output`."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single  # until torch 2.12

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RoceWork:
        """One all-gather after the other."""
        work = RoceWork(outputs, len(outputs))
        pairs = [
            (as_bytes(made), as_bytes(taken)) for made, taken in zip(outputs, inputs, strict=True)
        ]
        for made, taken in pairs:
            fits("all_gather", made.numel(), self._size * taken.numel())
            self._run(ALL_GATHER, taken, made, work)
        return work

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> RoceWork:
        """Every rank's tensor into a tensor of its own; uneven ones by broadcasts, as NCCL's."""
        made, taken = only(outputs), as_bytes(only(inputs))
        fits("all_gather", len(made), self._size)
        parts = [as_bytes(tensor) for tensor in made]
        if any(part.numel() != taken.numel() for part in parts):
            work = RoceWork(made, len(parts))
            fits("all_gather", parts[self._rank].numel(), taken.numel())
            parts[self._rank].copy_(taken)
            for root, part in enumerate(parts):
                self._run(BROADCAST, part, part, work, peer=root)
            return work
        flat = torch.empty(self._size * taken.numel(), dtype=torch.uint8)

        def spread() -> None:
            for part, come in zip(parts, torch.split(flat, max(1, taken.numel())), strict=False):
                part.copy_(come)

        return self._run(ALL_GATHER, taken, flat, RoceWork(made), after=spread)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> RoceWork:
        """This rank's block of the sum of all ranks' `input`."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single  # until torch 2.12

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RoceWork:
        """One reduce-scatter after the other."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        work = RoceWork(outputs, len(outputs))
        pairs = [
            (numbers(made), numbers(taken)) for made, taken in zip(outputs, inputs, strict=True)
        ]
        for (made, taken), tensor in zip(pairs, outputs, strict=True):
            fits("reduce_scatter", taken.numel(), self._size * made.numel())
            reduction = reduction_of(op, tensor.dtype)
            self._run(REDUCE_SCATTER, taken, made, work, count=made.numel(), reduction=reduction)
        return work

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> RoceWork:
        """The same with a tensor per rank, all of one size."""
        made, blocks = only(outputs), only(inputs)
        for block in blocks:
            fits("reduce_scatter", block.numel(), made.numel())
        whole = torch.cat([numbers(block) for block in blocks])
        return self.reduce_scatter_single(numbers(made), whole.view(numbers(made).dtype), opts)
