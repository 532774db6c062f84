"""What numbers in a bucket tell of their width."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowcheck.wire.learn.trainer.widths import _width_of


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)]
)
def test_numbers_of_a_gradient_tell_their_width(
    dtype: torch.dtype, width: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(7)
    for share in (1.0, 0.3):
        drawn = torch.randn(4000, generator=generator) * scale
        drawn[torch.rand(4000, generator=generator) > share] = 0
        assert _width_of(bytes_of(drawn.to(dtype))) in (width, 0)
    assert _width_of(bytes_of((torch.randn(4000, generator=generator) * scale).to(dtype))) == width


def test_numbers_that_fit_both_widths_tell_nothing() -> None:
    drawn = torch.randn(4000, generator=torch.Generator().manual_seed(7))
    # Summed in bfloat16 and widened: no word has a lower half.
    assert _width_of(bytes_of(drawn.bfloat16().float())) == 0
    assert _width_of(bytes_of(drawn[:40])) == 0
    assert _width_of(np.zeros(4000, np.uint8)) == 0
    chance = np.random.default_rng(7).integers(0, 256, 4000, dtype=np.uint8)
    assert _width_of(chance) == 0
    # Two ranks' sums of bfloat16 numbers, in float32: a few low bits.
    pair = drawn[:2000].bfloat16().float() + drawn[2000:].bfloat16().float()
    assert _width_of(bytes_of(pair)) in (0, 4)
