"""Optimizers are made and looked at without torch's compiler, and are torch's own all the same."""

import subprocess
import sys

ALONE = """
import sys
import torch
from flowcheck.config import OptimizerConfig
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.torch_without_compiler import ANSWER, MARKED, step_without_compiler
from flowcheck.replica.optimizer.optimizer_state_shapes import optimizer_state_shapes

def compiler():
    print("loaded" if "torch._dynamo" in sys.modules else "left out")

layout = Layout.of_shapes([(4, 3), (3,), (700, 800)])
for name in ("sgd", "adam", "adamw"):
    config = OptimizerConfig(name=name, learning_rate=0.1)
    found = optimizer_state_shapes(config, layout).kinds
    print(name, *sorted(found[0]), *(kind.shape for _, kind in sorted(found[2].items())))
own = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
own.load_state_dict(own.state_dict())
own.zero_grad()
compiler()

values = torch.linspace(-1, 1, 7)
def made(kind):
    p = torch.nn.Parameter(values.clone())
    p.grad = values.clone()
    return p, getattr(torch.optim, kind)([p], lr=0.1)
KINDS = ("SGD", "AdamW", "RMSprop", "Adagrad", "Adadelta")
lean = {kind: made(kind) for kind in KINDS}
for _, optimizer in lean.values():
    step_without_compiler(optimizer)
compiler()

for kind, (p, optimizer) in lean.items():
    q, whole = made(kind)
    whole.step()
    mine, its = optimizer.state[p], whole.state[q]
    assert torch.equal(p, q) and list(mine) == list(its), kind
    assert all(a is b or torch.equal(a, b) for a, b in zip(mine.values(), its.values())), kind
compiler()

own.load_state_dict(own.state_dict())
own.zero_grad()
own.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
for name in MARKED:
    answer = getattr(getattr(torch.optim.Optimizer, name).__wrapped__, ANSWER)
    print(name, answer.__module__.partition(".")[0])
"""


def test_the_compiler_is_left_out_until_somebody_loads_it_and_asked_from_then_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == [
        "sgd",
        "adam exp_avg exp_avg_sq step (700, 800) (700, 800) ()",
        "adamw exp_avg exp_avg_sq step (700, 800) (700, 800) ()",
        "left out",
        "left out",
        "loaded",
        "add_param_group torch",
        "load_state_dict torch",
        "state_dict torch",
        "zero_grad torch",
    ], done.stderr
