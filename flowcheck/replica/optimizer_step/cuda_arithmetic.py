"""Whose rounding the steps of a trainer on a GPU have: which of torch's CUDA kernels takes them,
and what that rests on."""

from __future__ import annotations

import numpy as np
import torch

from flowcheck._core import ffi
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic, CKernelRule
from flowcheck.wire.training_job.learned_job import UNTIL_AUDITED

OTHER_BITS = (
    "the trainer's optimizer runs on a GPU, and torch's kernels for a CPU take its steps: last "
    f"bits may differ, more with every step ({{}}) {UNTIL_AUDITED}"
)


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


def why_no_cuda_kernel(optimizer: torch.optim.Optimizer, kernel: CKernelRule) -> str | None:
    """Why the operations read off the kernels are not those of these settings; None: they are."""
    for group in optimizer.param_groups:
        if why := kernel.unfit_on_cuda(group):
            return why
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
