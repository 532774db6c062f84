"""What a script's model and optimizer are after a step, by its own account: sha256 by rank 0."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist


def account(
    step: int,
    parameters: Iterable[torch.Tensor],
    *optimizers: torch.optim.Optimizer,
    ring: int | None = None,
    writes: bool | None = None,
):
    """One line in the file that is the script's first argument: the parameters that take
    gradients, and each kind of optimizer state of them, flat in registration order. ring: each
    has a file of its own; writes: whether this rank does, by default rank 0."""
    if not (writes if writes is not None else not dist.get_rank()):
        return
    own = [p for p in parameters if p.requires_grad]
    state = {p: kept for o in optimizers for p, kept in o.state.items()}
    there = {(p, kind) for p in own for kind, kept in state.get(p, {}).items() if kept is not None}
    kinds = sorted({kind for _, kind in there})
    line = {
        "step": step,
        "parameters": _sha256(own),
        "states": {k: _sha256([state[p][k] for p in own if (p, k) in there]) for k in kinds},
    }
    name = sys.argv[1] if ring is None else f"{sys.argv[1]}.{ring}"
    with Path(name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def noise(*place: int) -> None:
    """Seeds torch by a place (step, rank, ...) of the run."""
    seed = hashlib.sha256(repr(place).encode()).digest()
    torch.manual_seed(int.from_bytes(seed[:7], "big"))


def _sha256(tensors: list[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        # In the order of memory, in which DDP sends them too.
        flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
        whole.update(flat.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
