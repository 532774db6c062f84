"""Whose rounding the steps of a trainer on a GPU have: which of torch's CUDA kernels takes them,
and what that rests on."""

from __future__ import annotations

import numpy as np
import torch

from flowcheck._core import ffi
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic, CKernelRule

FLOAT_FUSED_SINCE = (2, 11)
"""The release of torch whose fused Adam computes in float32 with std::fma; adam_math before takes
its settings as double (headers of the wheels 2.6.0 to 2.13.0)."""
READ = "2.6.0 and 2.13.0"
"""Releases whose compiled kernels were read."""

STEP_DOUBLES = np.dtype(
    [
        (name, "f8")
        for name in ("decay", "weight_decay", "beta1", "beta1_rest", "beta2", "beta2_rest", "eps")
    ]
)
"""struct fc_step_wide."""
assert STEP_DOUBLES.itemsize == ffi.sizeof("struct fc_step_wide")


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


def why_no_cuda_kernel(optimizer: torch.optim.Optimizer, kernel: CKernelRule) -> Finding | None:
    """Why the operations read off the kernels are not those of these settings; None: they are."""
    for group in optimizer.param_groups:
        if why := kernel.unfit_on_cuda(group):
            return why
    kinds = {(g.get("fused"), g.get("foreach")) for g in optimizer.param_groups}
    return findings.MIXED_IMPLEMENTATIONS() if len(kinds) > 1 else None


def cuda_assumptions(
    arithmetic: Arithmetic, unfit: Finding | None, *, clips: bool
) -> tuple[Finding, ...]:
    """What no frame shows of a GPU's arithmetic. unfit: why C does not apply the steps."""
    if unfit is not None:
        return (findings.CPU_FOR_GPU(unfit),)
    told = [findings.GPU_KERNELS(kernels=arithmetic, releases=READ)]
    if arithmetic is Arithmetic.CUDA_FUSED:
        told.append(findings.GPU_POWERS())
    if clips:
        told.append(findings.GPU_NORM())
    return tuple(told)
