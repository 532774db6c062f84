"""The arithmetic of torch's CUDA kernels against the operations read off them, each done by libm:
on every twin."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.onestep import HERE, STATES

from flowcheck._core import ffi, lib
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.optimizer_step.c_kernel_pass import KernelPlan, StepArguments
from flowcheck.replica.optimizer_step.cuda_kernel_choice import arithmetic_of
from flowcheck.replica.param_layout import Layout

LIBM = ctypes.CDLL("libm.so.6")
LIBM.fmaf.restype = ctypes.c_float
LIBM.fmaf.argtypes = [ctypes.c_float] * 3
LIBM.fma.restype = ctypes.c_double
LIBM.fma.argtypes = [ctypes.c_double] * 3
F = np.float32
SIZES, STEPS = (1, 7, 16, 37, 250), 12


def fmaf(a: Any, b: Any, c: Any) -> np.float32:
    return F(LIBM.fmaf(float(a), float(b), float(c)))


@pytest.fixture(params=HERE)
def twin(request):
    assert lib.fc_step_choose(request.param.encode()) == 0
    yield request.param
    assert lib.fc_step_choose(ffi.NULL) == 0


def lerp(start, end, weight):
    """Lerp.h, as nvcc contracts it."""
    weight = F(weight)
    if abs(weight) < 0.5:
        return fmaf(weight, end - start, start)
    return fmaf(-(F(1) - weight), end - start, end)


def element(own, g, group, step, arithmetic, split):
    """(p, m, v, most) of one element after a step: numbers are numpy's float32. split: fused Adam
    rounds the product of its weight decay (tests/unit/test_gpu_measured.py has which do)."""
    p, m, v, most = own
    (b1, b2), lr, decay, eps = group["betas"], group["lr"], group["weight_decay"], group["eps"]
    apart, root = group["decoupled_weight_decay"], np.sqrt
    g = -g if group["maximize"] else g
    if arithmetic is Arithmetic.CUDA_FUSED_WIDE:
        if decay and not apart:
            g = F(LIBM.fma(decay, float(p), float(g)))
        if decay and apart:
            p = F(LIBM.fma(-(lr * decay), float(p), float(p)))
        m = F(LIBM.fma(b1, float(m), (1 - b1) * float(g)))
        v = F(LIBM.fma(b2, float(v), (1 - b2) * float(g) * float(g)))
        most = max(most, v)
        rate = F(lr / float(F(1 - math.pow(b1, step))))
        over = root(most if group["amsgrad"] else v) / F(math.sqrt(1 - math.pow(b2, step)))
        return p - (rate * m) / F(float(over) + eps), m, v, most
    if decay and not apart:
        splits = split and arithmetic is Arithmetic.CUDA_FUSED and not group["amsgrad"]
        g = g + p * F(decay) if splits else fmaf(p, decay, g)
    if arithmetic is Arithmetic.CUDA_FUSED:
        if decay and apart:
            p = fmaf(-(F(lr) * F(decay)), p, p)
        b1, b2 = F(b1), F(b2)
        m = fmaf(b1, m, fmaf(-b1, g, g))
        v = fmaf(b2, v, fmaf(-b2, g * g, g * g))
        most = max(most, v)
        bias1, bias2 = (F(1) - F(math.pow(float(b), step)) for b in (b1, b2))
        below = root(most if group["amsgrad"] else v) / root(bias2) + F(eps)
        return p - (F(lr) / bias1 * m) / below, m, v, most
    if decay and apart:
        p = p * F(1 - lr * decay)
    m = lerp(m, g, 1 - b1)
    v = fmaf(g * g, F(1 - b2), v * F(b2))
    most = max(most, v)
    bias2_root = (1 - b2**step) ** 0.5
    over = root(most if group["amsgrad"] else v)
    loop = arithmetic is Arithmetic.CUDA_LOOP
    over = over * F(1 / bias2_root) if loop else over / F(bias2_root)
    return fmaf(m / (over + F(eps)), F((lr / (1 - b1**step)) * -1), p), m, v, most


GROUPS = [
    {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0, "eps": 1e-8},
    {"lr": 3e-2, "betas": (0.31, 0.955), "weight_decay": 0.1, "eps": 1e-6, "maximize": True},
]
"""With betas whose powers up to STEPS CUDA's powf rounds correctly, or is taken to."""
SPLIT = [n % 4 != 0 or at % 4 == 0 for n in SIZES for at in range(n)]
CUDA = [a for a in Arithmetic if a.cuda]


@pytest.mark.parametrize("group", GROUPS, ids=["plain", "decays"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("arithmetic", CUDA)
def test_each_element_goes_through_the_operations_read_off_the_kernels(
    arithmetic, name, amsgrad, group, twin
):
    layout = Layout.of_shapes([(n,) for n in SIZES])
    rng = np.random.default_rng(4)
    values = [torch.zeros(n) for n in SIZES]
    optimizer = getattr(torch.optim, name)(values, amsgrad=amsgrad, **group)
    stated, count = optimizer.param_groups[0], len(SIZES)
    names = ("parameters", *STATES["adam"][: 2 + amsgrad])
    copies = [{n: np.zeros(layout.elements, F) for n in names} for _ in range(2)]
    copies[0]["parameters"][:] = rng.standard_normal(layout.elements)
    own = [(p, F(0), F(0), F(0)) for p in copies[0]["parameters"]]
    flat = KernelPlan(layout, names)
    groups = [(stated, range(count))]
    for step in range(1, STEPS + 1):
        gradient = (rng.standard_normal(layout.elements) * 10.0 ** rng.integers(-6, 3)).astype(F)
        before = np.full(count, step - 1, F)
        used = np.ones(count, bool)
        table = c_kernel_args.kernel_args(
            optimizer, groups, before, before > 0, used, arithmetic=arithmetic
        )
        wide = c_kernel_args.double_kernel_args(optimizer, groups, count, arithmetic)
        source, target = copies
        flat.begin(
            StepArguments(table, lib.FC_STEP_ROOT_EXACT, gradient, wide), source, target
        ).run()
        copies = [target, source]
        numbers = zip(own, gradient, SPLIT, strict=True)
        own = [element(o, g, stated, step, arithmetic, s) for o, g, s in numbers]
    for number, section in enumerate(names):
        expected = np.array([o[number] for o in own], F)
        np.testing.assert_array_equal(copies[0][section].view("u4"), expected.view("u4"), section)


def test_no_two_arithmetics_give_the_same_bits():
    layout, rng = Layout.of_shapes([(5000,)]), np.random.default_rng(3)
    optimizer = torch.optim.AdamW([torch.zeros(5000)], lr=1e-3)
    groups, names = [(optimizer.param_groups[0], range(1))], ("parameters", *STATES["adam"][:2])
    source = {n: np.abs(rng.standard_normal(5000)).astype(F) for n in names}
    gradient, found = rng.standard_normal(5000).astype(F), set()
    for arithmetic in Arithmetic:
        target = {n: np.zeros(5000, F) for n in names}
        at, one = np.full(1, 8, F), np.ones(1, bool)
        table = c_kernel_args.kernel_args(optimizer, groups, at, one, one, arithmetic=arithmetic)
        wide = c_kernel_args.double_kernel_args(optimizer, groups, 1, arithmetic)
        flat = KernelPlan(layout, names)
        flat.begin(
            StepArguments(table, lib.FC_STEP_ROOT_EXACT, gradient, wide), source, target
        ).run()
        found.add(b"".join(array.tobytes() for array in target.values()))
    assert len(found) == len(Arithmetic)


def test_which_fused_kernel_it_is_the_trainers_torch_tells():
    def of(device, version, **chosen):
        return arithmetic_of(device, torch.optim.AdamW([torch.zeros(1)], **chosen), version)

    assert of("cuda", "2.10.0", fused=True) is Arithmetic.CUDA_FUSED_WIDE
    assert of("cuda", "2.11.1+cu126", fused=True) is Arithmetic.CUDA_FUSED
    assert of("cuda", None, fused=True) is Arithmetic.CUDA_FUSED
    assert of("cuda", "2.6.0", foreach=True) is Arithmetic.CUDA_FOREACH
    assert of("cuda", "2.6.0") is Arithmetic.CUDA_FOREACH
    assert of("cuda", "2.6.0", foreach=False) is Arithmetic.CUDA_LOOP
    assert of("cpu", "2.6.0", fused=True) is Arithmetic.CPU
