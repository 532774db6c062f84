"""Which optimizers the C kernel can step on this machine, and its table of arguments, one row per
tensor (optimizer_rules/c_kernel_rules.py computes the rows)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from flowcheck._core import ffi, lib
from flowcheck.findings.catalog import step_arithmetic as findings
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.c_kernel_rules import C_KERNELS, Arithmetic, KernelArgs
from flowcheck.optimizer_rules.optimizer_rule import CKernel
from flowcheck.replica.optimizer.optimizer_class import rule_of_class
from flowcheck.replica.optimizer_step import cuda_kernel_choice
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.torch_vector_math import settle_vector_math

GroupsWithMembers = Sequence[tuple[dict[str, Any], Sequence[int] | np.ndarray]]
"""(settings, members) of each param_group before the step; members: indices of its parameters in
registration order."""

SQUARE_ROOT_NAMES = {
    int(lib.FC_STEP_ROOT_EXACT): "exact",
    int(lib.FC_STEP_ROOT_NEWTON): "newton",
    int(lib.FC_STEP_ROOT_FUSED): "fused",
}
FLOAT32_MAX = float(np.finfo(np.float32).max)
STEP_ROW = np.dtype(
    [("rule", "u4"), ("flags", "u4")]
    + [
        (name, "f4")
        for name in (
            *("divisor", "scale", "weight_decay", "decay", "rate", "momentum", "undamped"),
            *("beta1_rest", "beta2", "beta2_rest", "bias2_root", "eps"),
        )
    ]
)
"""dtype of `struct fc_step_row` (dpdk_ext/step/fc_step.h)."""
assert STEP_ROW.itemsize == ffi.sizeof("struct fc_step_row")


def why_no_c_kernel(
    optimizer: torch.optim.Optimizer, layout: Layout, arithmetic: Arithmetic = Arithmetic.CPU
) -> Finding | None:
    """Why torch must apply the steps of this optimizer; None: the C kernel can. layout: of the
    replica. arithmetic: rounding of the trainer's kernels."""
    rule = rule_of_class(type(optimizer))
    if rule.c_kernel is None:
        return findings.NO_KERNEL(type(optimizer).__name__)
    kernel = C_KERNELS[rule.c_kernel]
    if layout.dtype != "float32":
        return findings.PARAMETER_DTYPE(layout.dtype)
    for group in optimizer.param_groups:
        others = ("capturable", "differentiable")
        for key in others if arithmetic.cuda else ("fused", *others):
            if group.get(key):
                return findings.OTHER_ARITHMETIC(key)
        if any(isinstance(value, torch.Tensor) for key, value in group.items() if key != "params"):
            return findings.TENSOR_SETTING()
        if unfit_setting := kernel.unfit(group):
            return unfit_setting
    if arithmetic.cuda:
        return cuda_kernel_choice.why_no_cuda_kernel(optimizer, kernel, arithmetic)
    if not cpu_kernels_use_fma():
        return findings.NO_FUSED_MULTIPLY_ADD()
    if rule.square_roots and square_root_kind() is None:
        return findings.UNKNOWN_ROOT()
    return None


def cpu_assumptions(optimizer: torch.optim.Optimizer) -> tuple[Finding, ...]:
    """Assumptions about a CPU trainer's arithmetic that no packet can confirm."""
    return (findings.SQUARE_ROOTS(),) if rule_of_class(type(optimizer)).square_roots else ()


def cpu_kernels_use_fma() -> bool:
    """Whether torch's CPU kernels contract multiplication and addition to one fma. Those for AVX2
    and AVX-512 do, the default x86 kernels do not (ATEN_CPU_CAPABILITY)."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@cache
def square_root_kind() -> int | None:
    """Number of the C square root that gives the same bits as torch's on all `_probes`; None: none
    does.

    torch uses MKL for square roots (aten/src/ATen/cpu/vml.h), which refines an estimate by a
    Newton step. With AVX-512 and fma on Intel CPUs it starts from that instruction set's estimate,
    and one result in 170 is one ulp off; on another vendor's CPUs it starts from a 12-bit
    estimate, and every seventh is off.
    """
    settle_vector_math()
    values = _probes()
    own = torch.from_numpy(values).sqrt().numpy().view(np.uint32)
    for kind in SQUARE_ROOT_NAMES:
        if lib.fc_step_root_runs(kind) and np.array_equal(
            c_square_roots(values, kind).view(np.uint32), own
        ):
            return kind
    return None


def square_root_name() -> str:
    """Name of this machine's square root, as stored with a recording."""
    kind = square_root_kind()
    return "unknown" if kind is None else SQUARE_ROOT_NAMES[kind]


def _probes() -> np.ndarray:
    """[n] float32: what is special, the ends of the ranges that are, and every 61st value from 1 up
    to below 4.

    An exponent's parity and the upper 12 bits of the mantissa choose an estimate (rsqrtps errs by
    at most 1.5 * 2**-12), so that two binades hold all there are. Each has 4,096 values; 67 of
    them, at every distance from where the estimate is best, are tried: a library with another
    estimate or another last step is one bit off in a good part of those. Of the smallest numbers,
    where a step has too few bits unless a library scales them, every millionth is tried.
    """
    infinity, most = 0x7F800000, 0x7F7FF000
    ends = [
        0,
        1,
        2,
        0x7FFFFF,
        0x800000,
        0x800001,
        *range(most - 8, most + 8),
        infinity - 1,
        infinity,
    ]
    small = np.arange(1, 0x10000000, 999_983)
    bits = np.concatenate([ends, small, np.arange(0x3F800000, 0x40800000, 61)])
    return bits.astype(np.uint32).view(np.float32)


def c_square_roots(values: np.ndarray, kind: int) -> np.ndarray:
    """Square roots by the C kernel. values: [n] float32; kind: as `square_root_kind`."""
    found = np.empty_like(values)
    pointers = (ffi.cast("float *", a.ctypes.data) for a in (values, found))
    lib.fc_step_roots(*pointers, values.size, kind)
    return found


def kernel_args(
    optimizer: torch.optim.Optimizer,
    groups: GroupsWithMembers,
    steps: np.ndarray | None,
    held: np.ndarray,
    used: np.ndarray,
    *,
    divisor: float = 1.0,
    scale: float | None = None,
    arithmetic: Arithmetic = Arithmetic.CPU,
) -> np.ndarray:
    """[parameters] of dtype STEP_ROW: arguments of the next step.

    optimizer: one that `why_no_c_kernel` accepts.
    groups: its param_groups and their members.
    steps: [parameters] float32, step counters before the step; None: the optimizer has none.
    held: [parameters] bool, those that have an optimizer state.
    used: [parameters] bool, those that have a gradient.
    divisor, scale: the gradient is divided by and multiplied with these first; scale None: not
    multiplied.
    arithmetic: rounding of the trainer's kernels.

    Raises OverflowError where a setting exceeds float32.
    """
    table = np.zeros(len(used), STEP_ROW)
    kernel = C_KERNELS[_kernel_of(optimizer)]
    behind = held.astype(np.float32) if steps is None else steps + np.float32(1)
    for group, members in groups:
        every = np.asarray(members, np.intp)
        taken = every[used[every]]  # of the others it is rule 0: nothing changes
        at = behind[taken]
        for number in map(float, np.unique(at)):
            own = kernel.cpu_args(group, number)
            if arithmetic.cuda:
                own = kernel.cuda_args(own, group, number, arithmetic)
            table[taken[at == number]] = _row(own, divisor, scale)
        if np.any(table["flags"][taken] & lib.FC_STEP_LANES):
            ragged = np.array([p.numel() % 4 != 0 for p in group["params"]], np.bool_)
            table["flags"][every[ragged]] |= lib.FC_STEP_RAGGED
    return table


def double_kernel_args(
    optimizer: torch.optim.Optimizer,
    groups: GroupsWithMembers,
    parameters: int,
    arithmetic: Arithmetic,
) -> np.ndarray | None:
    """[parameters] of dtype STEP_DOUBLES (cuda_kernel_choice.py): settings in double, for the
    arithmetic that needs them; None: `arithmetic` does not. optimizer: as in `kernel_args`."""
    if arithmetic is not Arithmetic.CUDA_FUSED_WIDE:
        return None
    table = np.zeros(parameters, cuda_kernel_choice.STEP_DOUBLES)
    double_args = C_KERNELS[_kernel_of(optimizer)].double_args
    if double_args is not None:
        for group, members in groups:
            table[np.asarray(members, np.intp)] = double_args(group)
    return table


def _kernel_of(optimizer: torch.optim.Optimizer) -> CKernel:
    kernel = rule_of_class(type(optimizer)).c_kernel
    assert kernel is not None, "torch applies its steps"
    return kernel


def _row(own: KernelArgs, divisor: float, scale: float | None) -> tuple[Any, ...]:
    if divisor != 1.0:
        own |= {"divisor": divisor, "flags": int(own["flags"]) | lib.FC_STEP_DIVIDE}
    if scale is not None:
        own |= {"scale": scale, "flags": int(own["flags"]) | lib.FC_STEP_SCALE}
    for name, value in own.items():
        if math.isfinite(value) and abs(value) > FLOAT32_MAX:
            raise OverflowError(f"{name} {value} is more than float32 holds")
    return tuple(own.get(name, 0) for name in STEP_ROW.names or ())
