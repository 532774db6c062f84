"""torch.distributed.ProcessGroup over the emulated NIC.

Methods and their arguments are those torch calls (torch/csrc/distributed/c10d/PyProcessGroup.hpp,
torch/distributed/distributed_c10d.py); which NCCL collectives they become follows ProcessGroupNCCL:
a barrier is an all-reduce of one byte, gather, scatter and all-to-all are sends and receives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from flowcheck.lab.trainer.communicator import Communicator, Operation, Outcome
from flowcheck.lab.trainer.memory import TYPES, as_bytes, numbers, reduction_of
from flowcheck.lab.trainer.settings import Settings
from flowcheck.lab.trainer.truth import Truth
from flowcheck.lab.trainer.work import Lane, RoceWork

ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV = range(6)
"""enum fcl_kind."""
NAMES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send", "recv")

PARTING = timedelta(seconds=2)
"""How long a rank that leaves waits for the others, so that none loses its last ACKs."""

Tensors = list[torch.Tensor]


Base: Any = dist.ProcessGroup
"""Untyped: what torch's stubs say of its methods changes with every release."""


class RoceGroup(Base):  # type: ignore[misc]
    """Ranks whose collectives cross the wire as NCCL's would. Tensors: dense, on the CPU."""

    def __init__(
        self, settings: Settings, store: Any, rank: int, size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, size)
        self._settings, self._store = settings, store
        self._rank, self._size = rank, size
        self._timeout_ms = min(int(timeout.total_seconds() * 1000), 2**31 - 1)
        self._communicator: Communicator | None = None
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._lock = threading.Lock()
        self._truth, self._operations = Truth(settings.truth), 0
        self._closed = False
        self._name, self._description = "", ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """As registered."""
        return "roce"

    def getRank(self) -> int:  # noqa: N802 - torch's name
        """Rank in this group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802 - torch's name
        """Ranks of this group."""
        return self._size

    # The base class keeps names in backends, of which a group in Python has none.

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Torch's name of the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """As set."""
        return self._name

    @property
    def group_name(self) -> str:
        """As set."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """Read by torch where it chooses a device for objects, or asks for a CPU backend."""
        return [torch.device("cpu")]

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """The user's words about it."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """As set."""
        return self._description

    @property
    def group_desc(self) -> str:
        """As set."""
        return self._description

    def _lane(self, kind: int, peer: int) -> Lane:
        """Where operations of `kind` queue. What goes to a peer and what comes from it
        wait for nobody else."""
        if self._closed:
            raise dist.DistBackendError("flowcheck lab: this process group was shut down")
        if self._communicator is None:
            self._communicator = Communicator(
                self._settings, self._store, self._rank, self._size, self._timeout_ms
            )
        pair = kind in (SEND, RECV)
        if not pair:
            self._communicator.connect_ring()
        key = (kind, peer) if pair else (ALL_REDUCE, 0)
        if key not in self._lanes:
            self._lanes[key] = Lane(self._communicator, peer if pair else None)
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

        def finish(outcome: Outcome) -> None:
            if after is not None:
                after()
            if self._truth.wanted:
                self._tell(index, operation, outcome, made)

        with self._lock:
            index, self._operations = self._operations, self._operations + 1
            self._lane(kind, peer).add(operation, work, finish, (taken, made))
        return work

    def _tell(self, index: int, operation: Operation, outcome: Outcome, made: torch.Tensor) -> None:
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
            protocol=("LL", "LL128", "SIMPLE")[outcome.protocol],
            channels=outcome.channels,
            messages=outcome.messages,
        )

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """Sum (or opts.reduceOp) of one tensor over all ranks, in place."""
        return self.allreduce_coalesced([only(tensors)], opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """One all-reduce after the other."""
        op = ReduceOp.SUM if opts is None else opts.reduceOp
        work = RoceWork(tensors, len(tensors))
        ready = [(numbers(tensor), reduction_of(op, tensor.dtype)) for tensor in tensors]
        for flat, reduction in ready:
            self._run(ALL_REDUCE, flat, flat, work, reduction=reduction)
        return work

    def barrier(self, opts: Any = None) -> RoceWork:
        """An all-reduce of one byte."""
        return self.allreduce([torch.zeros(1, dtype=torch.uint8)])

    def broadcast(self, tensors: Tensors, opts: Any = None) -> RoceWork:
        """The root's bytes to all, in place."""
        flat, root = as_bytes(only(tensors)), 0 if opts is None else int(opts.rootRank)
        return self._run(BROADCAST, flat, flat, RoceWork(tensors), peer=root)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RoceWork:
        """To `peer`, in order; tags are not looked at, as NCCL does not."""
        flat = as_bytes(only(tensors))
        return self._run(SEND, flat, flat, RoceWork(tensors), peer=peer)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> RoceWork:
        """From `peer`, in order."""
        flat = as_bytes(only(tensors))
        return self._run(RECV, flat, flat, RoceWork(tensors), peer=peer)

    def abort(self) -> None:
        """Fail what is under way."""
        if self._communicator is not None and not self._closed:
            self._communicator.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Part from the others, then give everything back."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed or self._communicator is None:
                return
            self._communicator.part(PARTING)
            self._communicator.abort("the process group was shut down")
            for lane in self._lanes.values():
                lane.close()
            self._communicator.close()


def only(tensors: list[Any]) -> Any:
    """The one element. Raises ValueError where there are others."""
    if len(tensors) != 1:
        raise ValueError(f"a rank has one device here, {len(tensors)} tensors were given")
    return tensors[0]


def fits(what: str, have: int, due: int) -> None:
    """Raises ValueError unless `have` is what is `due`."""
    if have != due:
        raise ValueError(f"{what}: {have} where {due} are due")
