"""The jobs that `train.py` trains: by name, what the ranks run and how NCCL is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import models
import torch
from torch import nn

ADAMW, SGD = torch.optim.AdamW, torch.optim.SGD
RING, TREE = "Ring", "allreduce:tree"


@dataclass(frozen=True)
class Job:
    """One training run. Every rank is a host of its own."""

    ranks: int
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: ADAMW(p, lr=1e-2)
    model: Callable[[], nn.Module] = models.small
    kind: str = "ddp"
    """"ddp"; "zero": DDP with ZeroRedundancyOptimizer; "fsdp2"; "hsdp": two replicas of shards."""
    steps: int = 5
    env: dict[str, Any] = field(default_factory=dict)
    """NCCL's settings; none: NCCL chooses."""
    ddp: dict[str, Any] = field(default_factory=dict)
    """Arguments of DistributedDataParallel."""
    clip: float | None = None
    """The norm that gradients are clipped to."""
    accumulate: int = 1
    """Backward passes a step."""
    dtype: torch.dtype = torch.float32
    hook: bool = False
    """Gradients are reduced in bfloat16 by DDP's hook."""
    metric: bool = False
    """Every second step two numbers are summed over the ranks."""
    second_group: bool = False
    """Every step a second communicator of the same ranks sums three numbers."""
    stages: bool = False
    """Ranks send activations to one another in pairs, as pipeline stages do."""


JOBS = {
    "default": Job(3),
    "ring-ll128": Job(
        3,
        lambda p: ADAMW(p, lr=1e-2, fused=True),
        models.batch_norm,
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "LL128"},
        clip=0.05,
    ),
    "ring-simple": Job(
        3,
        lambda p: SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "Simple"},
        ddp={"bucket_cap_mb": 0.01},
    ),
    "ring-ll": Job(
        4,
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "LL"},
        ddp={"gradient_as_bucket_view": True},
        clip=0.03,
    ),
    "tree-simple": Job(
        4,
        model=models.width_90,
        steps=4,
        env={"NCCL_ALGO": TREE, "NCCL_PROTO": "allreduce:simple"},
    ),
    "tree-ll128": Job(
        3,
        lambda p: ADAMW(p, lr=1e-2, foreach=False),
        env={"NCCL_ALGO": TREE, "NCCL_PROTO": "allreduce:ll128"},
    ),
    "tree-ll": Job(5, env={"NCCL_ALGO": TREE, "NCCL_PROTO": "allreduce:ll"}),
    "eight": Job(8, model=models.width_100, steps=3),
    "two-ranks": Job(2, lambda p: SGD(p, lr=1e-2)),
    "wide-simple": Job(
        3,
        lambda p: ADAMW(p, lr=1e-3),
        models.deep_180,
        steps=3,
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "Simple"},
        ddp={"bucket_cap_mb": 0.3},
    ),
    "wide-default": Job(
        4,
        lambda p: ADAMW(p, lr=1e-3, fused=True),
        models.deep_250,
        steps=3,
        ddp={"bucket_cap_mb": 0.5},
    ),
    "channels": Job(
        3,
        model=models.width_110,
        steps=4,
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "LL128", "NCCL_MIN_NCHANNELS": 8},
    ),
    "bf16": Job(
        3,
        lambda p: SGD(p, lr=1e-2),
        env={"NCCL_ALGO": RING, "NCCL_PROTO": "LL128"},
        dtype=torch.bfloat16,
    ),
    "hook": Job(3, hook=True),
    "accumulate": Job(
        3, lambda p: ADAMW(p, lr=1e-2, betas=(0.9, 0.95)), accumulate=3, clip=0.02, metric=True
    ),
    "unused": Job(
        3,
        lambda p: torch.optim.RMSprop(p, lr=1e-3),
        models.batch_norm,
        ddp={"find_unused_parameters": True},
        second_group=True,
    ),
    "pipeline": Job(4, stages=True),
    "fsdp2": Job(3, model=models.without_scalar, kind="fsdp2"),
    "fsdp2-pat": Job(
        4,
        model=models.without_scalar,
        kind="fsdp2",
        env={"NCCL_ALGO": "allgather:pat"},
    ),
    "hsdp": Job(4, model=models.width_60, kind="hsdp", clip=0.05),
    "zero": Job(3, kind="zero"),
}
