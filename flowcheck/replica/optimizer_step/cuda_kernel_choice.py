"""Which of torch's CUDA kernels a GPU trainer's steps run in, and thereby how they round; and the
assumptions of that."""

from __future__ import annotations

import numpy as np
import torch

from flowcheck._core import ffi
from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic, CKernelRule
from flowcheck.optimizer_rules.cuda_powers import is_measured
from flowcheck.replica.optimizer.cuda_gradient_norm import PROCESSORS

FLOAT_FUSED_SINCE = (2, 11)
"""First torch release whose fused Adam computes in float32 with std::fma; earlier ones pass
settings to adam_math as double (headers of the wheels 2.6.0 to 2.13.0)."""
DISASSEMBLED_RELEASES = "2.6.0 and 2.13.0"
"""torch releases whose compiled kernels were disassembled."""
MEASURED_WITH = {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130"}
"""What all but the fused kernels in doubles were measured on (tests/data/gpu)."""

STEP_DOUBLES = np.dtype(
    [
        (name, "f8")
        for name in ("decay", "weight_decay", "beta1", "beta1_rest", "beta2", "beta2_rest", "eps")
    ]
)
"""dtype of `struct fc_step_wide` (dpdk_ext/step/fc_step.h)."""
assert STEP_DOUBLES.itemsize == ffi.sizeof("struct fc_step_wide")


def at_least_torch(release: tuple[int, int], torch_version: str | None) -> bool:
    """Whether the trainer's torch is of this release or a later one; None: a newest one."""
    if torch_version is None:
        return True
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) >= release


def arithmetic_of(
    device: str, optimizer: torch.optim.Optimizer, torch_version: str | None
) -> Arithmetic:
    """The arithmetic of the trainer's optimizer.

    device: "cpu" or "cuda".
    optimizer: torch's object with the trainer's settings.
    torch_version: the trainer's release, such as "2.10.0"; None: the newest known.
    """
    if device == "cpu":
        return Arithmetic.CPU
    group = optimizer.param_groups[0]
    if not group.get("fused"):
        # None is foreach for parameters on a GPU (torch/optim/optimizer.py,
        # _default_to_fused_or_foreach).
        return Arithmetic.CUDA_LOOP if group.get("foreach") is False else Arithmetic.CUDA_FOREACH
    floats = at_least_torch(FLOAT_FUSED_SINCE, torch_version)
    return Arithmetic.CUDA_FUSED if floats else Arithmetic.CUDA_FUSED_WIDE


def why_no_cuda_kernel(
    optimizer: torch.optim.Optimizer, kernel: CKernelRule, arithmetic: Arithmetic
) -> Finding | None:
    """Why the known arithmetic of the CUDA kernels does not apply to these settings; None: it
    does. kernel: rule of the C kernel."""
    for group in optimizer.param_groups:
        if why := kernel.unfit_on_cuda(group, arithmetic):
            return why
    kinds = {(g.get("fused"), g.get("foreach")) for g in optimizer.param_groups}
    return findings.MIXED_IMPLEMENTATIONS() if len(kinds) > 1 else None


def cuda_assumptions(
    arithmetic: Arithmetic, optimizer: torch.optim.Optimizer, unfit: Finding | None
) -> tuple[Finding, ...]:
    """Assumptions about a GPU trainer's steps that no packet can confirm. unfit: why torch and not
    the C kernel applies them; None: C does."""
    if unfit is not None:
        return (findings.CPU_FOR_GPU(unfit),)
    if arithmetic is Arithmetic.CUDA_FUSED_WIDE:
        return (findings.GPU_KERNELS(kernels=arithmetic, releases=DISASSEMBLED_RELEASES),)
    told = [
        findings.GPU_KERNELS_MEASURED(
            kernels=arithmetic, releases=DISASSEMBLED_RELEASES, **MEASURED_WITH
        )
    ]
    betas = {beta for group in optimizer.param_groups for beta in group.get("betas", ())}
    if arithmetic is Arithmetic.CUDA_FUSED and not all(map(is_measured, betas)):
        told.append(findings.GPU_POWERS())
    return tuple(told)


def norm_assumptions(config: OptimizerConfig) -> tuple[Finding, ...]:
    """What no frame shows of the norm that a GPU clips gradients by."""
    if config.clip_norm is None:
        return ()
    if config.clip_together:
        return (findings.GPU_NORM(),)
    if config.clip_foreach:
        return (findings.GPU_NORM_ORDER(**MEASURED_WITH),)
    return (findings.GPU_NORM_ALONE(processors=PROCESSORS, **MEASURED_WITH),)
