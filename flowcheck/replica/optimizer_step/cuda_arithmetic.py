"""Rounding of a trainer on a GPU: which torch CUDA kernel takes its steps, and the scalars that
kernel uses.
scalars (dpdk_ext/step/fc_step_cuda.h has what happens to each element).

foreach and the for-loop compute their scalars in Python's doubles, as on a CPU. The fused kernels
compute them on the device: in float32 from torch 2.11 on, with CUDA's powf, in double before
(aten/src/ATen/native/cuda/fused_adam_utils.cuh, FusedAdamMathFunctor).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import torch

from flowcheck._core import ffi, lib
from flowcheck.wire.training_job.learned_job import UNTIL_AUDITED

KernelArgs = dict[str, float | int]


OTHER_BITS = (
    "the trainer's optimizer runs on a GPU, and torch's kernels for a CPU take its steps: last "
    f"bits may differ, more with every step ({{}}) {UNTIL_AUDITED}"
)


class Arithmetic(StrEnum):
    """Whose rounding a step has."""

    CPU = "cpu"
    CUDA_LOOP = "cuda loop"
    CUDA_FOREACH = "cuda foreach"
    CUDA_FUSED = "cuda fused"
    """Of torch 2.11 to 2.13."""
    CUDA_FUSED_WIDE = "cuda fused in doubles"
    """Of torch 2.6 to 2.10."""

    @property
    def cuda(self) -> bool:
        return self is not Arithmetic.CPU

    @property
    def fused(self) -> bool:
        return self in (Arithmetic.CUDA_FUSED, Arithmetic.CUDA_FUSED_WIDE)


FLOAT_FUSED_SINCE = (2, 11)
"""The release of torch whose fused Adam computes in float32 with std::fma; adam_math before takes
its settings as double (headers of the wheels 2.6.0 to 2.13.0)."""
READ = "2.6.0 and 2.13.0"
"""Releases whose compiled kernels were read."""

WIDE = np.dtype(
    [
        (name, "f8")
        for name in ("decay", "weight_decay", "beta1", "beta1_rest", "beta2", "beta2_rest", "eps")
    ]
)
"""struct fc_step_wide."""
assert WIDE.itemsize == ffi.sizeof("struct fc_step_wide")


def arithmetic_of(
    device: str, optimizer: torch.optim.Optimizer, torch_version: str | None
) -> Arithmetic:
    """Of torch's own object, made as the trainer makes it. torch_version: the trainer's, "2.10.0";
    None: a newest one."""
    if device == "cpu":
        return Arithmetic.CPU
    group = optimizer.param_groups[0]
    if not group.get("fused"):
        # None is foreach for parameters on a GPU (torch/optim/optimizer.py,
        # _default_to_fused_or_foreach).
        return Arithmetic.CUDA_LOOP if group.get("foreach") is False else Arithmetic.CUDA_FOREACH
    release = tuple(map(int, (torch_version or "2.13").split(".")[:2]))
    return Arithmetic.CUDA_FUSED if release >= FLOAT_FUSED_SINCE else Arithmetic.CUDA_FUSED_WIDE


def why_no_cuda_kernel(optimizer: torch.optim.Optimizer) -> str | None:
    """Why the operations read off the kernels are not those of these settings; None: they are."""
    for group in optimizer.param_groups:
        # addcmul by 1 is one operation less, and not in every release the same (DeviceAddCmulCdiv).
        if "betas" in group and np.float32(1 - group["betas"][1]) == 1:
            return "without a second beta, releases of torch differ"
    kinds = {(g.get("fused"), g.get("foreach")) for g in optimizer.param_groups}
    return "groups have different implementations" if len(kinds) > 1 else None


def cuda_assumptions(arithmetic: Arithmetic, unfit: str | None, *, clips: bool) -> tuple[str, ...]:
    """What no frame shows of a GPU's arithmetic, in sentences. unfit: why C does not take the
    steps."""
    if unfit is not None:
        return (OTHER_BITS.format(unfit),)
    told = [
        f"the trainer's GPU rounds as torch's kernels for {arithmetic} do, whose operations were "
        f"read off the wheels of torch {READ} {UNTIL_AUDITED}"
    ]
    if arithmetic is Arithmetic.CUDA_FUSED:
        told.append(
            "CUDA's powf gives beta ** step rounded correctly; where it does not (about one step "
            f"in 4,000 at 0.999), that step is one unit in the last place off {UNTIL_AUDITED}"
        )
    if clips:
        told.append(
            "the norm that gradients are clipped by is summed in a GPU's own order: its last bit, "
            f"and with it that of all gradients of a clipped step, may be another {UNTIL_AUDITED}"
        )
    return tuple(told)


def sgd_args(
    row: KernelArgs, group: dict[str, Any], _: float, arithmetic: Arithmetic
) -> KernelArgs:
    """A CPU's row as CUDA's kernels take it: FusedSgdKernel.cu subtracts the dampening in
    float32."""
    if arithmetic.fused:
        row["undamped"] = float(np.float32(1) - np.float32(group["dampening"]))
    return row


def adam_args(
    row: KernelArgs, group: dict[str, Any], step: float, arithmetic: Arithmetic
) -> KernelArgs:
    """A CPU's row as CUDA's kernels take it. step: Adam's counter, of this step."""
    if arithmetic is Arithmetic.CUDA_FUSED:
        return _fused(row, group, step)
    if arithmetic is Arithmetic.CUDA_FUSED_WIDE:
        return _fused_wide(row, group, step)
    row["flags"] = int(row["flags"]) | lib.FC_STEP_CUDA
    if arithmetic is Arithmetic.CUDA_LOOP:
        row["flags"] = int(row["flags"]) | lib.FC_STEP_RECIPROCAL
        row["bias2_root"] = float(np.float32(1) / np.float32(row["bias2_root"]))
    return row


def _fused(row: KernelArgs, group: dict[str, Any], step: float) -> KernelArgs:
    one, rate = np.float32(1), np.float32(group["lr"])
    beta1, beta2 = map(np.float32, group["betas"])
    bias1 = one - np.float32(float(beta1) ** step)
    bias2 = one - np.float32(float(beta2) ** step)
    return row | {
        "flags": int(row["flags"]) | lib.FC_STEP_FUSED,
        "decay": -float(rate * np.float32(group["weight_decay"])),
        "rate": float(rate / bias1),
        "beta1_rest": float(beta1),
        "bias2_root": float(np.sqrt(bias2)),
    }


def _fused_wide(row: KernelArgs, group: dict[str, Any], step: float) -> KernelArgs:
    beta1, beta2 = group["betas"]
    bias1 = np.float32(1 - beta1**step)
    decays = bool(int(row["flags"]) & lib.FC_STEP_DECAY_GRADIENT)
    flags = int(row["flags"]) & ~lib.FC_STEP_DECAY_GRADIENT if decays else int(row["flags"])
    return row | {
        "flags": flags | lib.FC_STEP_FUSED_WIDE,
        "rate": float(np.float32(group["lr"] / float(bias1))),
        "bias2_root": float(np.float32((1 - beta2**step) ** 0.5)),
    }


def double_args(group: dict[str, Any]) -> tuple[float, ...]:
    """Of WIDE; SGD has nothing there."""
    if "betas" not in group:
        return (0.0,) * len(WIDE.names or ())
    beta1, beta2 = group["betas"]
    apart = group["decoupled_weight_decay"]
    return (
        -(group["lr"] * group["weight_decay"]),
        0.0 if apart else group["weight_decay"],
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        group["eps"],
    )
