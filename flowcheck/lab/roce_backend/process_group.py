"""torch.distributed.ProcessGroup over the emulated NIC: all collectives, sends and receives.

Methods and their arguments are those torch calls (torch/csrc/distributed/c10d/PyProcessGroup.hpp,
torch/distributed/distributed_c10d.py); which NCCL collectives they become follows ProcessGroupNCCL:
a barrier is an all-reduce of one byte, gather, scatter and all-to-all are sends and receives.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from flowcheck.lab.roce_backend.ground_truth_log import GroundTruthLog
from flowcheck.lab.roce_backend.pending_work import OperationQueue, RoceWork
from flowcheck.lab.roce_backend.roce_communicator import (
    EmulatedNic,
    Operation,
    OperationResult,
    RoceCommunicator,
)
from flowcheck.lab.roce_backend.tensor_memory import TYPES, as_bytes, as_numbers, reduction_of
from flowcheck.lab.roce_backend.trainer_environment import BackendSettings

ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV, ALL_GATHER_V = range(7)
"""Values of enum fcl_kind (dpdk_ext/lab/fcl_comm.h)."""
NAMES = (
    *("all_reduce", "broadcast", "all_gather", "reduce_scatter"),
    *("send", "recv", "all_gather_v"),
)

LEAVING_LIMIT = timedelta(seconds=2)
"""Time for which a leaving rank waits for the others, so that none misses its last ACKs."""

Tensors = list[torch.Tensor]


Base: Any = dist.ProcessGroup
"""Without types: torch's stubs of these methods change with every release."""


class RoceGroup(Base):  # type: ignore[misc]
    """A process group whose collectives use the wire as NCCL's do. Tensors must be dense and on
    the CPU."""

    def __init__(
        self, settings: BackendSettings, store: Any, rank: int, size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, size)
        self._settings, self._store = settings, store
        self._rank, self._size = rank, size
        self._timeout_ms = min(int(timeout.total_seconds() * 1000), 2**31 - 1)
        self._communicator: RoceCommunicator | None = None
        self._lanes: dict[tuple[int, int], OperationQueue] = {}
        self._lock = threading.Lock()
        self._truth, self._operations = GroundTruthLog(settings.truth), 0
        self._closed = False
        self._name, self._description = "", ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Name of the backend as registered."""
        return "roce"

    def getRank(self) -> int:  # noqa: N802 - torch's name
        """This process's rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802 - torch's name
        """Number of ranks in the group."""
        return self._size

    # The base class keeps names in backends, of which a group in Python has none.

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Sets torch's name of the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """torch's name of the group."""
        return self._name

    @property
    def group_name(self) -> str:
        """torch's name of the group."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """Read by torch where it chooses a device for objects, or asks for a CPU backend."""
        return [torch.device("cpu")]

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """Sets the user's description of the group."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """The user's description of the group."""
        return self._description

    @property
    def group_desc(self) -> str:
        """The user's description of the group."""
        return self._description

    def _lane(self, operation: Operation) -> OperationQueue:
        """Where an operation queues, its connections made. What goes to a peer and what comes from
        it wait for nobody else."""
        if self._closed:
            raise dist.DistBackendError("flowcheck lab: this process group was shut down")
        if self._communicator is None:
            self._communicator = RoceCommunicator(
                self._settings, self._store, self._rank, self._size, self._timeout_ms
            )
        peer, pair = operation.peer, operation.kind in (SEND, RECV)
        if not pair:
            self._communicator.connect_for(operation)
        key = (operation.kind, peer) if pair else (ALL_REDUCE, 0)
        if key not in self._lanes:
            self._lanes[key] = OperationQueue(self._communicator, peer if pair else None)
        return self._lanes[key]

    def _run(
        self,
        kind: int,
        taken: torch.Tensor,
        made: torch.Tensor,
        work: RoceWork,
        *,
        count: int | None = None,
        reduction: int = 0,
        peer: int = 0,
        after: Callable[[], None] | None = None,
    ) -> RoceWork:
        """Queue one operation on flat memory; `after` runs when its bytes are there."""
        number = taken.numel() if count is None else count
        operation = Operation(
            kind=kind,
            type=TYPES[taken.dtype],
            reduction=reduction,
            count=number,
            input=taken.data_ptr(),
            output=made.data_ptr(),
            peer=peer,
        )

        def finish(outcome: OperationResult) -> None:
            if after is not None:
                after()
            if self._truth.wanted:
                self._tell(index, operation, outcome, made)

        with self._lock:
            index, self._operations = self._operations, self._operations + 1
            self._lane(operation).add(operation, work, finish, (taken, made))
        return work

    def _tell(
        self, index: int, operation: Operation, outcome: OperationResult, made: torch.Tensor
    ) -> None:
        pair = operation.kind in (SEND, RECV)
        self._truth.write(
            dist.get_rank(),
            None if operation.kind == SEND else made,
            index=index,
            group=self.group_name,
            ranks=self._size,
            kind=NAMES[operation.kind],
            dtype=str(made.dtype).removeprefix("torch."),
            count=operation.count,
            peer=operation.peer,
            algorithm=None if pair else ("RING", "TREE", "NVLS_TREE")[outcome.algorithm],
            protocol=("LL", "LL128", "SIMPLE")[outcome.protocol],
            channels=outcome.channels,
            messages=outcome.messages,
        )

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """All-reduce of one tensor in place. opts.reduceOp: the operation; default: sum."""
        return self.allreduce_coalesced([only_element(tensors)], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """One all-reduce per tensor, in order."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        work = RoceWork(tensors, len(tensors))
        ready = [(as_numbers(tensor), reduction_of(op, tensor.dtype)) for tensor in tensors]
        for flat, reduction in ready:
            self._run(ALL_REDUCE, flat, flat, work, reduction=reduction)
        return work

    def barrier(self, opts: Any = None) -> RoceWork:
        """Barrier: an all-reduce of one byte, as in ProcessGroupNCCL, or of one float, as in
        nccl2."""
        dtype = torch.float32 if self._settings.nccl2 else torch.uint8
        return self.allreduce([torch.zeros(1, dtype=dtype)])

    def broadcast(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """Broadcast of one tensor from opts.rootRank, in place."""
        flat, root = as_bytes(only_element(tensors)), 0 if opts is None else int(opts.rootRank)
        return self._run(BROADCAST, flat, flat, RoceWork(tensors), peer=root)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RoceWork:
        """Sends a tensor to `peer`, in order; the tag is ignored, as in NCCL."""
        flat = as_bytes(only_element(tensors))
        return self._run(SEND, flat, flat, RoceWork(tensors), peer=peer)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> RoceWork:
        """Receives a tensor from `peer`, in order; the tag is ignored."""
        flat = as_bytes(only_element(tensors))
        return self._run(RECV, flat, flat, RoceWork(tensors), peer=peer)

    def abort(self) -> None:
        """Fails all running operations."""
        if self._communicator is not None and not self._closed:
            self._communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Waits for the other ranks (LEAVING_LIMIT) and releases everything."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed or self._communicator is None:
                return
            self._communicator.part(LEAVING_LIMIT)
            self._communicator.abort("the process group was shut down")
            for lane in self._lanes.values():
                lane.close()
            self._communicator.close()


def only_element(tensors: list[Any]) -> Any:
    """The only element of the list. Raises ValueError if it does not have exactly one."""
    if len(tensors) != 1:
        raise ValueError(f"a rank has one device here, {len(tensors)} tensors were given")
    return tensors[0]


def check_size(what: str, have: int, due: int) -> None:
    """Raises ValueError unless `have` equals `due`. what: for the message."""
    if have != due:
        raise ValueError(f"{what}: {have} where {due} are due")


class BlockGroup(RoceGroup):
    """Adds all-gather and reduce-scatter to the group."""

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> RoceWork:
        """All-gather: `output` is the concatenation of all ranks' `input`."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single  # until torch 2.12

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RoceWork:
        """One all-gather per tensor pair, in order."""
        work = RoceWork(outputs, len(outputs))
        pairs = [
            (as_bytes(made), as_bytes(taken)) for made, taken in zip(outputs, inputs, strict=True)
        ]
        for made, taken in pairs:
            check_size("all_gather", made.numel(), self._size * taken.numel())
            self._run(ALL_GATHER, taken, made, work)
        return work

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> RoceWork:
        """All-gather into one tensor per rank; tensors of different sizes by broadcasts, as in
        ProcessGroupNCCL. nccl2 has one gather that NCCL makes of grouped broadcasts, for tensors
        of one size."""
        made, taken = only_element(outputs), as_bytes(only_element(inputs))
        check_size("all_gather", len(made), self._size)
        parts = [as_bytes(tensor) for tensor in made]
        if any(part.numel() != taken.numel() for part in parts):
            work = RoceWork(made, len(parts))
            check_size("all_gather", parts[self._rank].numel(), taken.numel())
            parts[self._rank].copy_(taken)
            for root, part in enumerate(parts):
                self._run(BROADCAST, part, part, work, peer=root)
            return work
        flat = torch.empty(self._size * taken.numel(), dtype=torch.uint8)

        def spread() -> None:
            for part, come in zip(parts, torch.split(flat, max(1, taken.numel())), strict=False):
                part.copy_(come)

        kind = ALL_GATHER_V if self._settings.nccl2 else ALL_GATHER
        return self._run(kind, taken, flat, RoceWork(made), after=spread)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> RoceWork:
        """Reduce-scatter: `output` is this rank's block of the sum of all ranks' `input`."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single  # until torch 2.12

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RoceWork:
        """One reduce-scatter per tensor pair, in order."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        work = RoceWork(outputs, len(outputs))
        pairs = [
            (as_numbers(made), as_numbers(taken))
            for made, taken in zip(outputs, inputs, strict=True)
        ]
        for (made, taken), tensor in zip(pairs, outputs, strict=True):
            check_size("reduce_scatter", taken.numel(), self._size * made.numel())
            reduction = reduction_of(op, tensor.dtype)
            self._run(REDUCE_SCATTER, taken, made, work, count=made.numel(), reduction=reduction)
        return work

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> RoceWork:
        """Reduce-scatter from one tensor per rank, all of equal size."""
        made, blocks = only_element(outputs), only_element(inputs)
        for block in blocks:
            check_size("reduce_scatter", block.numel(), made.numel())
        whole = torch.cat([as_numbers(block) for block in blocks])
        return self.reduce_scatter_single(
            as_numbers(made), whole.view(as_numbers(made).dtype), opts
        )


_groups: weakref.WeakSet[RoceGroup] = weakref.WeakSet()


class RoceProcessGroup(BlockGroup):
    """The process group that torch gets; adds gather, scatter and all-to-all."""

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
        """Gathers every rank's tensor at opts.rootRank."""
        given: list[Any] = [None] * self._size
        taken: list[Any] = [None] * self._size
        given[opts.rootRank] = as_bytes(inputs[0])
        if self._rank == opts.rootRank:
            taken = [as_bytes(tensor) for tensor in outputs[0]]
        return self._exchange(given, taken, outputs[0] if outputs else [])

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> RoceWork:
        """Scatters the root's tensors, one to each rank."""
        given: list[Any] = [None] * self._size
        taken: list[Any] = [None] * self._size
        taken[opts.rootRank] = as_bytes(outputs[0])
        if self._rank == opts.rootRank:
            given = [as_bytes(tensor) for tensor in inputs[0]]
        return self._exchange(given, taken, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RoceWork:
        """All-to-all with one tensor per pair of ranks."""
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
        """All-to-all of blocks along the first dimension. Split sizes in rows; None: equal
        blocks."""
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
        """Not supported by the lab; raises NotImplementedError."""
        raise NotImplementedError("the lab's RoCE backend has no reduce; all_reduce does it")


def creator(settings: BackendSettings) -> Callable[[Any, int, int, timedelta], RoceProcessGroup]:
    """The factory that torch calls for each process group: (store, rank, size, timeout) ->
    group."""

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
    EmulatedNic.close()
