"""What NCCL makes of sends and receives: gather, scatter, all-to-all."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from flowcheck.lab.trainer.blocks import BlockGroup
from flowcheck.lab.trainer.communicator import Node
from flowcheck.lab.trainer.group import RECV, SEND, RoceGroup, Tensors
from flowcheck.lab.trainer.memory import as_bytes
from flowcheck.lab.trainer.settings import Settings
from flowcheck.lab.trainer.work import RoceWork

_groups: weakref.WeakSet[RoceGroup] = weakref.WeakSet()


class RoceProcessGroup(BlockGroup):
    """The group torch gets."""

    def _exchange(self, given: list[Any], taken: list[Any], result: Tensors) -> RoceWork:
        """Send given[r] to rank r and receive taken[r] from it, None: nothing; all at once."""
        if given[self._rank] is not None and taken[self._rank] is not None:
            taken[self._rank].copy_(given[self._rank])
        peers = [rank for rank in range(self._size) if rank != self._rank]
        moves = [(SEND, peer, given[peer]) for peer in peers if given[peer] is not None]
        moves += [(RECV, peer, taken[peer]) for peer in peers if taken[peer] is not None]
        work = RoceWork(result, len(moves))
        for kind, peer, flat in moves:
            self._run(kind, flat, flat, work, peer=peer)
        return work

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> RoceWork:
        """Every rank's tensor at the root."""
        given: list[Any] = [None] * self._size
        taken: list[Any] = [None] * self._size
        given[opts.rootRank] = as_bytes(inputs[0])
        if self._rank == opts.rootRank:
            taken = [as_bytes(tensor) for tensor in outputs[0]]
        return self._exchange(given, taken, outputs[0] if outputs else [])

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> RoceWork:
        """A tensor of the root's for every rank."""
        given: list[Any] = [None] * self._size
        taken: list[Any] = [None] * self._size
        taken[opts.rootRank] = as_bytes(outputs[0])
        if self._rank == opts.rootRank:
            given = [as_bytes(tensor) for tensor in inputs[0]]
        return self._exchange(given, taken, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RoceWork:
        """A tensor from every rank to every rank."""
        given = [as_bytes(tensor) for tensor in inputs]
        return self._exchange(given, [as_bytes(tensor) for tensor in outputs], outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> RoceWork:
        """The same with blocks along the first dimension."""
        made = self._blocks(output, output_split_sizes)
        work = self.alltoall(made, self._blocks(input, input_split_sizes))
        return work

    alltoall_base = all_to_all_single  # until torch 2.12

    def _blocks(self, tensor: torch.Tensor, sizes: list[int] | None) -> Tensors:
        even = sizes or [tensor.shape[0] // self._size] * self._size
        if sum(even) != tensor.shape[0]:
            raise ValueError(f"all_to_all: {tensor.shape[0]} rows are not shared out by {even}")
        return list(torch.split(tensor.detach(), even))

    def reduce(self, *arguments: Any, **options: Any) -> RoceWork:
        """Not moved by the lab."""
        raise NotImplementedError("the lab's RoCE backend has no reduce; all_reduce does it")


def creator(settings: Settings) -> Callable[[Any, int, int, timedelta], RoceProcessGroup]:
    """What torch calls for each process group: (store, rank, size, timeout) -> group."""

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> RoceProcessGroup:
        group = RoceProcessGroup(settings, store, rank, size, timeout)
        _groups.add(group)
        return group

    atexit.register(_leave, os.getpid())
    return create


def _leave(owner: int) -> None:
    """A script need not destroy its groups; what it sent last must still arrive. A child that was
    forked has neither the thread nor the connections."""
    if os.getpid() != owner:
        return
    for group in list(_groups):
        group.shutdown()
    Node.close()
