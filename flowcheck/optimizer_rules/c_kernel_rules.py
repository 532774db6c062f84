"""The arguments of the C kernels for a tensor's step, by optimizer: scalars and flags of struct
fc_step_row (dpdk_ext/step/fc_step.h).

The C kernels do the same operations as torch's for-loop on a CPU, in the same order; foreach runs
the same operations (torch/optim/sgd.py and adam.py: _single_tensor_*, _multi_tensor_*). Scalars are
computed here in Python's doubles, by torch's own expressions; torch rounds each scalar to float32
where it is combined with a tensor.

On a GPU foreach and the for-loop compute their scalars in Python's doubles too. The fused kernels
compute them on the device: in float32 from torch 2.11 on, with CUDA's powf, in double before
(aten/src/ATen/native/cuda/fused_adam_utils.cuh, FusedAdamMathFunctor). dpdk_ext/step/fc_step_cuda.h
has what happens to each element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from flowcheck._core import lib
from flowcheck.findings.catalog.step_arithmetic import (
    FUSED_ADAM_MAXIMIZES,
    FUSED_SGD_ADDS_OTHERWISE,
    NO_FIRST_BETA,
    NO_SECOND_BETA,
)
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.cuda_powers import cuda_power
from flowcheck.optimizer_rules.optimizer_rule import CKernel

KernelArgs = dict[str, float | int]
"""{field of struct fc_step_row: value}; fields that are left out are 0."""
Group = Mapping[str, Any]
"""One of torch's parameter groups with its settings before the step."""


class Arithmetic(StrEnum):
    """The implementation in torch whose rounding a step has."""

    CPU = "cpu"
    CUDA_LOOP = "cuda loop"
    CUDA_FOREACH = "cuda foreach"
    CUDA_FUSED = "cuda fused"
    """Fused kernels of torch 2.11 to 2.13."""
    CUDA_FUSED_WIDE = "cuda fused in doubles"
    """Fused kernels of torch 2.6 to 2.10."""

    @property
    def cuda(self) -> bool:
        return self is not Arithmetic.CPU

    @property
    def fused(self) -> bool:
        return self in (Arithmetic.CUDA_FUSED, Arithmetic.CUDA_FUSED_WIDE)


def fits_always(group: Group) -> Finding | None:
    """Default of `unfit`: the C kernel has torch's arithmetic with all settings."""
    return None


def fits_always_on_cuda(group: Group, arithmetic: Arithmetic) -> Finding | None:
    """Default of `unfit_on_cuda`, likewise."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CKernelRule:
    """How a C kernel computes the steps of an optimizer."""

    cpu_args: Callable[[Group, float], KernelArgs]
    """Arguments for a step on a CPU, from the group and the parameter's count of steps, with this
    one. If the optimizer does not count: 1 if the parameter has a state, else 0."""
    cuda_args: Callable[[KernelArgs, Group, float, Arithmetic], KernelArgs]
    """Arguments for a step on a GPU, derived from the CPU's."""
    double_args: Callable[[Group], tuple[float, ...]] | None = None
    """Fields of struct fc_step_wide: scalars that stay double in CUDA_FUSED_WIDE. None: there are
    none."""
    unfit: Callable[[Group], Finding | None] = fits_always
    """Why the C kernel does not have torch's arithmetic with these settings."""
    unfit_on_cuda: Callable[[Group, Arithmetic], Finding | None] = fits_always_on_cuda
    """Why the C kernel does not have the arithmetic of torch's CUDA kernels with these settings."""


def _sgd(group: Group, held: float) -> KernelArgs:
    flags = _maximizes(group)
    momentum = group["momentum"]
    if momentum:
        flags |= 0 if held else lib.FC_STEP_FIRST
        flags |= lib.FC_STEP_NESTEROV if group["nesterov"] else 0
    if group["weight_decay"]:
        flags |= lib.FC_STEP_DECAY_GRADIENT
    return {
        "rule": lib.FC_STEP_MOMENTUM if momentum else lib.FC_STEP_SGD,
        "flags": flags,
        "weight_decay": group["weight_decay"],
        "rate": -group["lr"],
        "momentum": momentum,
        "undamped": 1 - group["dampening"],
    }


def _sgd_on_cuda(args: KernelArgs, group: Group, _: float, arithmetic: Arithmetic) -> KernelArgs:
    """Arguments of SGD on a GPU: the CPU's (`_sgd_unfit_on_cuda` has the rest)."""
    return args


def _adam(group: Group, step: float) -> KernelArgs:
    flags = _maximizes(group)
    beta1, beta2 = group["betas"]
    if group["weight_decay"]:
        decoupled = group["decoupled_weight_decay"]
        flags |= lib.FC_STEP_DECAY_PARAMETER if decoupled else lib.FC_STEP_DECAY_GRADIENT
    return {
        "rule": lib.FC_STEP_AMSGRAD if group["amsgrad"] else lib.FC_STEP_ADAM,
        "flags": flags,
        "weight_decay": group["weight_decay"],
        "decay": 1 - group["lr"] * group["weight_decay"],
        "rate": -(group["lr"] / (1 - beta1**step)),
        "beta1_rest": 1 - beta1,
        "beta2": beta2,
        "beta2_rest": 1 - beta2,
        "bias2_root": (1 - beta2**step) ** 0.5,
        "eps": group["eps"],
    }


def _adam_on_cuda(
    args: KernelArgs, group: Group, step: float, arithmetic: Arithmetic
) -> KernelArgs:
    if arithmetic is Arithmetic.CUDA_FUSED:
        return _adam_fused(args, group, step)
    if arithmetic is Arithmetic.CUDA_FUSED_WIDE:
        return _adam_fused_wide(args, group, step)
    args["flags"] = int(args["flags"]) | lib.FC_STEP_CUDA
    if arithmetic is Arithmetic.CUDA_LOOP:
        args["flags"] = int(args["flags"]) | lib.FC_STEP_RECIPROCAL
        args["bias2_root"] = 1 / args["bias2_root"]
    return args


def _adam_fused(args: KernelArgs, group: Group, step: float) -> KernelArgs:
    one, rate = np.float32(1), np.float32(group["lr"])
    beta1, beta2 = map(np.float32, group["betas"])
    bias1, bias2 = one - cuda_power(beta1, step), one - cuda_power(beta2, step)
    flags = int(args["flags"]) | lib.FC_STEP_FUSED
    if flags & lib.FC_STEP_DECAY_GRADIENT and not group["amsgrad"]:
        flags |= lib.FC_STEP_LANES
    return args | {
        "flags": flags,
        "decay": -float(rate * np.float32(group["weight_decay"])),
        "rate": float(rate / bias1),
        "beta1_rest": float(beta1),
        "bias2_root": float(np.sqrt(bias2)),
    }


def _adam_fused_wide(args: KernelArgs, group: Group, step: float) -> KernelArgs:
    beta1, beta2 = group["betas"]
    bias1 = np.float32(1 - beta1**step)
    decays = bool(int(args["flags"]) & lib.FC_STEP_DECAY_GRADIENT)
    flags = int(args["flags"]) & ~lib.FC_STEP_DECAY_GRADIENT if decays else int(args["flags"])
    return args | {
        "flags": flags | lib.FC_STEP_FUSED_WIDE,
        "rate": float(np.float32(group["lr"] / float(bias1))),
        "bias2_root": float(np.float32((1 - beta2**step) ** 0.5)),
    }


def _adam_doubles(group: Group) -> tuple[float, ...]:
    beta1, beta2 = group["betas"]
    decoupled = group["decoupled_weight_decay"]
    return (
        -(group["lr"] * group["weight_decay"]),
        0.0 if decoupled else group["weight_decay"],
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        group["eps"],
    )


def _adam_unfit(group: Group) -> Finding | None:
    if np.float32(1 - group["betas"][0]) == 1:
        return NO_FIRST_BETA()
    return None


def _adam_unfit_on_cuda(group: Group, arithmetic: Arithmetic) -> Finding | None:
    """Refuses settings with which torch's addcmul multiplies by 1: torch then leaves out an
    operation, in some releases only (DeviceAddCmulCdiv). And decayed gradients that are negated
    first: which sums nvcc contracts in the kernel without amsgrad was measured without that."""
    if np.float32(1 - group["betas"][1]) == 1:
        return NO_SECOND_BETA()
    decays = group["weight_decay"] and not group["decoupled_weight_decay"]
    alone = arithmetic is Arithmetic.CUDA_FUSED and not group["amsgrad"]
    return FUSED_ADAM_MAXIMIZES() if alone and decays and group["maximize"] else None


def _sgd_unfit_on_cuda(group: Group, arithmetic: Arithmetic) -> Finding | None:
    """Refuses negated gradients in the fused kernel with momentum: nvcc contracts the sum otherwise
    for tensors of a multiple of four elements (measured; dampening alone changes nothing)."""
    if arithmetic.fused and group["momentum"] and group["maximize"]:
        return FUSED_SGD_ADDS_OTHERWISE()
    return None


def _maximizes(group: Group) -> int:
    return int(lib.FC_STEP_NEGATE) if group["maximize"] else 0


C_KERNELS = {
    CKernel.SGD: CKernelRule(
        cpu_args=_sgd, cuda_args=_sgd_on_cuda, unfit_on_cuda=_sgd_unfit_on_cuda
    ),
    CKernel.ADAM: CKernelRule(
        cpu_args=_adam,
        cuda_args=_adam_on_cuda,
        double_args=_adam_doubles,
        unfit=_adam_unfit,
        unfit_on_cuda=_adam_unfit_on_cuda,
    ),
}
