"""What torch's own DistributedDataParallel asks of its process group: the judge of `plan`.

The group has one real rank: reductions leave what is there, which is all that sizes and order need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
Call = tuple[str, int]
"""(kind, bytes of what every rank holds afterwards)."""

Base: Any = dist.ProcessGroup


class Work(dist._Work):
    """Of an operation that is over."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class Recorder(Base):  # type: ignore[misc]
    """A group that writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__(0, RANKS)
        self.calls: list[Call] = []

    def getBackendName(self) -> str:
        return "recorder"

    def getRank(self) -> int:
        return 0

    def getSize(self) -> int:
        return RANKS

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        self.calls.append(("all_reduce", tensors[0].nbytes))
        return Work(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        self.calls.append(("broadcast", tensors[0].nbytes))
        return Work(tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any = None
    ) -> Work:
        self.calls.append(("all_gather", sum(out.nbytes for out in outputs[0])))
        for out in outputs[0]:
            out.copy_(tensors[0])
        return Work(outputs[0])


def calls_of(
    module: torch.nn.Module,
    loss: Callable[[torch.nn.Module], torch.Tensor],
    *,
    iterations: int = 3,
    accumulate: int = 1,
    sync_each: bool = False,
    fp16_hook: bool = False,
    **options: Any,
) -> list[Call]:
    """Collectives that DDP makes of `module` from its constructor through some iterations."""
    group = Recorder()
    wrapped = DistributedDataParallel(module, process_group=group, **options)
    if fp16_hook:
        wrapped.register_comm_hook(group, default_hooks.fp16_compress_hook)
    for _ in range(iterations):
        for micro in range(accumulate):
            if micro < accumulate - 1 and not sync_each:
                with wrapped.no_sync():
                    loss(wrapped).backward()
            else:
                loss(wrapped).backward()
        module.zero_grad()
    return group.calls
