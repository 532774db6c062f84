"""No process of ours makes the first call of one of torch's vector functions in several threads."""

import subprocess
import sys

import pytest

WATCHED = """
import torch
from torch.overrides import TorchFunctionMode

class Watch(TorchFunctionMode):
    sizes = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "sqrt" and args:
            self.sizes.append((args[0].dtype, args[0].numel()))
        return function(*args, **(kwargs or dict()))

with Watch():
    {ours}
for dtype in (torch.float32, torch.float64):
    print(next((size for of, size in Watch.sizes if of is dtype), None))
print(max((size for _, size in Watch.sizes), default=0))
"""
OURS = {
    "the square root that fits": (
        "from flowcheck.replica.optimizer_step.c_kernel_args import square_root_kind\n"
        "    square_root_kind()",
        2048,
    ),
    "a process that steps": (
        "from flowcheck.replica.torch_without_compiler import load_torch\n    load_torch()",
        0,
    ),
}


@pytest.mark.parametrize(("ours", "more_than"), OURS.values(), ids=list(OURS))
def test_the_first_square_root_of_a_process_is_of_one_element(ours: str, more_than: int) -> None:
    command = [sys.executable, "-c", WATCHED.format(ours=ours)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    single, double, most = ended.stdout.split()
    assert (single, double) == ("1", "1")
    assert int(most) > more_than  # what the watch would have seen first otherwise
