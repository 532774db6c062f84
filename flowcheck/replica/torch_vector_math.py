"""The first calls of torch's vector functions in a process, made one by one.

torch computes square roots, exponentials and their like on a CPU by MKL, each thread a part of the
tensor (aten/src/ATen/cpu/vml.h). MKL chooses a function's kernel at its first call. Where several
threads make the first call at once, one of them may run the least exact kernel, without a word:
relative errors up to 3e-4 in its part of that one result, right bits from the second call on
(pytorch issue 188792; oneMKL 2024.2, which torch 2.13 holds). Seen here in one process of two
hundred on a busy machine, as a first step of AdamW that no other process computed.
"""

from __future__ import annotations

from functools import cache

import torch

FUNCTIONS = (
    "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "floor",
    "lgamma", "log", "log10", "log1p", "log2", "round", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc",
)  # fmt: skip
"""Those that vml.h hands to MKL in one release or another, and their kin."""


@cache
def settle_vector_math() -> None:
    """Calls each function with one element, by one thread: its kernel is chosen from then on, in
    forked children too."""
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for name in FUNCTIONS:
            getattr(torch, name)(one)
