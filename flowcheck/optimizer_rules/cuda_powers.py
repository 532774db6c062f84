"""Powers of a beta as CUDA's powf has them, which torch's fused kernels correct biases with.

cuda_powers.npz holds, for the betas that scripts make optimizers with, every step at which powf is
not the power rounded once, up to where 1 - power is 1: measured on an NVIDIA H200 with CUDA 13.0
(scripts/gpu/arithmetic.py, `powers`). Each array is [n] uint16 in ascending order of steps: twice
the distance from the step before, and 1 if powf is the float32 above the rounded power, else 0 for
the one below.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("cuda_powers.npz")


@cache
def _measured() -> dict[np.float32, dict[int, int]]:
    """{beta: {step: units in the last place by which powf is off, 1 or -1}}"""
    with np.load(FILE) as arrays:
        return {np.float32(float(name)): _exceptions(arrays[name]) for name in arrays.files}


def _exceptions(coded: np.ndarray) -> dict[int, int]:
    steps = np.cumsum(coded >> 1, dtype=np.int64)
    off = np.where(coded & 1, 1, -1)
    return dict(zip(steps.tolist(), off.tolist(), strict=True))


def is_measured(beta: float) -> bool:
    """Whether `cuda_power` of it is powf's at every step; else where powf rounds correctly."""
    return np.float32(beta) in _measured()


def cuda_power(beta: np.float32, step: float) -> np.float32:
    """powf(beta, step) of a beta from 0 to 1. step: a whole number."""
    rounded = np.float32(float(beta) ** step)
    off = _measured().get(beta, {}).get(int(step), 0)
    return np.nextafter(rounded, np.float32(np.inf * off)) if off else rounded
