"""One optimizer taken twice: by torch over tensors of its own, and by one pass of C."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from flowcheck._core import ffi, lib
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.optimizer_step.c_kernel_pass import KernelPlan, StepArguments
from flowcheck.replica.param_layout import Layout

TWINS = ("avx512", "vaes", "avx2", "plain")


def _runs(twin: str) -> bool:
    found = lib.fc_step_choose(twin.encode()) == 0
    lib.fc_step_choose(ffi.NULL)
    return bool(found)


HERE = [twin for twin in TWINS if _runs(twin)]
"""Those this CPU can run."""
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
STATES = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}


def lined(elements: int, past: int) -> np.ndarray:
    """Zeros, float32, whose memory begins `past` elements after the beginning of a cache line."""
    raw = np.zeros(elements + 32, np.float32)
    at = -raw.ctypes.data // 4 % 16 + past
    return raw[at : at + elements]


@dataclass
class Follower:
    """Torch's optimizer over tensors of its own, and one pass over two copies of flat memory."""

    name: str
    groups: list[dict[str, Any]]
    """Settings of each group, which has `sizes`."""
    sizes: list[list[int]]
    foreach: bool = False
    seed: int = 0
    copies: list[dict[str, np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        own = [[torch.randn(n) for n in sizes] for sizes in self.sizes]
        self.parameters = [p for group in own for p in group]
        stated = [
            {"params": tensors} | group for tensors, group in zip(own, self.groups, strict=True)
        ]
        self.optimizer = KINDS[self.name](stated, lr=0.1, foreach=self.foreach)
        ends = np.cumsum([0, *map(len, self.sizes)])
        self.members = [range(a, b) for a, b in pairwise(ends)]
        self.layout = Layout.of_shapes([(p.numel(),) for p in self.parameters])
        first = self.groups[0]
        names = STATES[self.name]
        if self.name == "sgd":
            names = names if first.get("momentum") else ()
        elif not first.get("amsgrad"):
            names = names[:2]
        self.names = ("parameters", *names)
        self.copies = [
            {name: lined(self.layout.elements, self.seed % 2) for name in self.names}
            for _ in range(2)
        ]
        self.copies[0]["parameters"][:] = torch.cat(self.parameters).numpy()
        self.steps = np.zeros(len(self.parameters), np.float32)
        self.flat = KernelPlan(self.layout, self.names)

    def step(self, gradient: np.ndarray, used: np.ndarray, **more: Any) -> list[bytes]:
        """One step of both; the pass's digests. gradient: [elements] float32."""
        ends = np.cumsum([p.numel() for p in self.parameters])[:-1]
        for p, own, has in zip(self.parameters, np.split(gradient, ends), used, strict=True):
            grad = torch.from_numpy(own.copy())
            if "divisor" in more:
                grad.div_(more["divisor"])
            if more.get("scale") is not None:
                grad.mul_(torch.tensor(more["scale"]))
            p.grad = grad if has else None
        self.optimizer.step()
        source, target = self.copies
        groups = list(zip(self.optimizer.param_groups, self.members, strict=True))
        counters = None if self.name == "sgd" else self.steps
        table = c_kernel_args.kernel_args(
            self.optimizer, groups, counters, self.steps > 0, used.astype(bool), **more
        )
        for array in target.values():
            array.fill(np.float32(7))
        root = c_kernel_args.square_root_kind()
        assert root is not None
        passing = self.flat.begin(StepArguments(table, root, gradient), source, target)
        passing.run(np.arange(0, len(used), 2))  # in two parts
        passing.run()
        self.steps += used
        self.copies = [target, source]
        return passing.digests()

    def trainer(self) -> dict[str, np.ndarray]:
        """What torch holds, flat; zeros where it has no state yet."""
        held = {"parameters": torch.cat(self.parameters).numpy()}
        for name in self.names[1:]:
            parts = [
                self.optimizer.state[p].get(name, torch.zeros_like(p)) for p in self.parameters
            ]
            held[name] = torch.cat(parts).numpy()
        return held

    def assert_same(self, *, any_nan: bool = False) -> None:
        """Bit for bit. any_nan: which NaN it is, is left open: of two, compilers choose."""
        for name, array in self.trainer().items():
            both = array, self.copies[0][name]
            if any_nan:
                both = tuple(np.where(np.isnan(a), np.float32("nan"), a) for a in both)
            np.testing.assert_array_equal(*(a.view(np.uint32) for a in both), err_msg=name)
