"""torch loaded early, and its optimizers used without loading torch's compiler (seconds of
start-up).

Four methods of torch.optim.Optimizer are marked as none of the compiler's business. The mark
(torch/_compile.py, _disable_dynamo) imports the compiler at the first call, only to hear that:
seconds of processor time in each process that makes an optimizer, and again in an updater that is
started in a killed one's place.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from flowcheck.replica.torch_vector_math import settle_vector_math

MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""torch/optim/optimizer.py, those under @torch._disable_dynamo."""
ANSWER = "__dynamo_disable"
"""Where the mark keeps what it heard. A torch that keeps it elsewhere loads its compiler."""
COMPILER = "torch._dynamo"


def skip_compiler_import() -> None:
    """Answers for the compiler as long as nobody has loaded it; from then on it is asked itself."""
    if COMPILER in sys.modules:
        return
    for name in MARKED:
        marked = getattr(torch.optim.Optimizer, name)
        plain = getattr(marked, "__wrapped__", None)
        if plain is not None and not hasattr(plain, ANSWER):
            setattr(plain, ANSWER, _answering(marked, plain))


def _answering(marked: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if COMPILER not in sys.modules:
            return plain(*arguments, **named)
        vars(plain).pop(ANSWER, None)
        return marked(*arguments, **named)

    return call


def step_without_compiler(optimizer: torch.optim.Optimizer) -> None:
    """One step to see what a class of torch.optim keeps. Its step() asks the compiler for a break
    in a graph (torch/optim/optimizer.py, _use_grad_for_differentiable), and there is no graph; what
    else it does is to switch gradients off. Hooks are not called."""
    kind = type(optimizer)
    differs = any(group.get("differentiable") for group in optimizer.param_groups)
    if COMPILER in sys.modules or differs or kind.__module__.partition(".")[0] != "torch":
        optimizer.step()
        return
    with torch.no_grad():
        inspect.unwrap(kind.step)(optimizer)


def load_torch(*, steps: bool = False) -> None:
    """So that the first optimizer is not late. steps: nor the first step that torch applies itself,
    with which it loads its compiler."""
    settle_vector_math()
    skip_compiler_import()
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    if steps:
        optimizer.step()
