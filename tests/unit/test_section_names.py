"""Every optimizer and implementation, bit for bit against torch on a model of its own."""

import random
import re
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch
from support.refused_as import refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import TORCH_REFUSES
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.param_layout import Layout

STEPS = 20
SETTINGS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "dampening": 0.3}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.8, "dampening": 0.5, "maximize": True}),
    ("adam", {"learning_rate": 1e-3}),
    ("adam", {"learning_rate": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-6}),
    ("adam", {"learning_rate": 1e-3, "amsgrad": True, "maximize": True}),
    ("adamw", {"learning_rate": 3e-4}),
    ("adamw", {"learning_rate": 1e-2, "amsgrad": True, "weight_decay": 0.3}),
]
CASES = [
    pytest.param(OptimizerConfig(name=name, implementation=how, **more), id=f"{name}-{index}-{how}")
    for index, (name, more) in enumerate(SETTINGS)
    for how in ("loop", "foreach", "fused")
]


# Each setting once, by turns; torch's own fused SGD cannot make a momentum for some parameters
# while others have theirs.
LEFT_OUT = [c for i, c in enumerate(CASES) if i % 3 == (i // 3 + 1) % 3 and i != 14]


@dataclass
class Trainer:
    """A plain torch.nn.Module and torch's own optimizer over it: the oracle."""

    parameters: list[torch.Tensor]
    optimizer: torch.optim.Optimizer

    @classmethod
    def random(cls, config: OptimizerConfig, seed: int) -> "Trainer":
        torch.manual_seed(seed)
        sizes = torch.randint(1, 200, (3,)).tolist()
        model = torch.nn.Module()
        model.register_parameter("one", torch.nn.Parameter(torch.randn(1)))
        model.register_parameter("scalar", torch.nn.Parameter(torch.randn(())))
        for index, size in enumerate(sizes):
            shape = (size, 7) if index else (size,)
            model.register_parameter(f"w{index}", torch.nn.Parameter(torch.randn(shape)))
        model.add_module("conv", torch.nn.Conv2d(5, 6, 3))
        model.register_parameter("big", torch.nn.Parameter(torch.randn(40_001)))
        model = model.to(memory_format=torch.channels_last)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        common = {"lr": config.learning_rate, "maximize": bool(config.maximize)}
        if config.weight_decay is not None:
            common["weight_decay"] = config.weight_decay
        keys = ("momentum", "dampening", "nesterov", "betas", "eps", "amsgrad")
        own = {key: getattr(config, key) for key in keys if getattr(config, key) is not None}
        how = {
            "foreach": config.implementation == "foreach",
            "fused": config.implementation == "fused",
        }
        parameters = list(model.parameters())
        return cls(parameters, kind[config.name](parameters, **common, **own, **how))

    def layout(self) -> Layout:
        return Layout.of([(tuple(p.shape), p.stride()) for p in self.parameters])

    def flat(self, tensors: list[torch.Tensor]) -> np.ndarray:
        parts = [torch.as_strided(t.detach(), (t.numel(),), (1,)) for t in tensors]
        return torch.cat(parts).numpy().copy()

    def step(self, used: np.ndarray | None = None, clip_norm: float | None = None) -> bytes:
        """One step on random gradients; their bytes as a bucket in registration order has them.

        used: [parameters] bool; the others have none, and zeros in the bucket.
        """
        for parameter in self.parameters:
            scale = torch.exp(torch.randn(()) * 4)
            parameter.grad = torch.randn_like(parameter) * scale
            assert parameter.grad.stride() == parameter.stride()
        for index in np.flatnonzero(~used) if used is not None else ():
            self.parameters[index].grad.zero_()
        wire = self.flat([p.grad for p in self.parameters]).tobytes()
        for index in np.flatnonzero(~used) if used is not None else ():
            self.parameters[index].grad = None
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        self.optimizer.step()
        return wire

    def states(self) -> dict[str, np.ndarray]:
        names = self.optimizer.state[self.parameters[0]].keys()
        of = self.optimizer.state
        return {
            name: np.array([of[p][name].item() for p in self.parameters], np.float32)
            if name == "step"
            else self.flat([of[p][name] for p in self.parameters])
            for name in names
            if of[self.parameters[0]][name] is not None
        }


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("config", CASES)
def test_parameters_and_states_equal_torch_after_every_step(config, threads, tmp_path):
    trainer = Trainer.random(config, seed=threads)
    start = trainer.flat(trainer.parameters)
    replica = Replica.create(tmp_path / "state", trainer.layout(), config, start)
    for step in range(1, STEPS + 1):
        wire = trainer.step()
        before = bytes(bytearray(wire))
        replica.apply(step, wire)
        assert wire == before, "the gradient belongs to its owner"
        mine = {name: array.tobytes() for name, array in replica.sections().items()}
        assert mine.pop("parameters") == trainer.flat(trainer.parameters).tobytes()
        assert mine == {name: array.tobytes() for name, array in trainer.states().items()}
    replica.close()


@pytest.mark.parametrize("config", LEFT_OUT)
def test_parameters_without_gradient_are_left_out_as_torch_leaves_them_out(config, tmp_path):
    clip_norm = 30.0 if config.implementation == "loop" else None
    config = msgspec.structs.replace(config, clip_norm=clip_norm)
    trainer = Trainer.random(config, seed=3)
    start = trainer.flat(trainer.parameters)
    path, layout = tmp_path / "state", trainer.layout()
    replica = Replica.create(path, layout, config, start, may_skip_parameters=True)
    dice = random.Random(5)
    for step in range(1, 11):
        used = np.array([dice.random() < 0.6 for _ in trainer.parameters])
        # The third parameter joins in late, and the last one never does.
        used[0], used[2], used[-1] = True, step > 6, False
        wire = trainer.step(used, clip_norm)
        if step == 5:
            replica.close()
            replica = Replica.open(path, config)
        replica.apply(step, wire, used)
        held = zip(trainer.parameters, replica.tensors().values(), strict=True)
        for parameter, mine in held:
            own = trainer.optimizer.state.get(parameter, {})
            wanted = {"value": parameter} | {k: v for k, v in own.items() if v is not None}
            assert mine.keys() == wanted.keys()
            for name, value in wanted.items():
                assert trainer.flat([mine[name]]).tobytes() == trainer.flat([value]).tobytes()
    replica.close()


def test_the_oracle_sees_another_arithmetic(tmp_path):
    """Loop and fused AdamW differ in the last bits, so that the test above could fail."""
    loop = OptimizerConfig(name="adamw", learning_rate=1e-3)
    fused = OptimizerConfig(name="adamw", learning_rate=1e-3, implementation="fused")
    trainer = Trainer.random(fused, seed=3)
    start = trainer.flat(trainer.parameters)
    with_loop = Replica.create(tmp_path / "state", trainer.layout(), loop, start)
    for step in range(1, STEPS + 1):
        with_loop.apply(step, trainer.step())
    assert with_loop.parameters().tobytes() != trainer.flat(trainer.parameters).tobytes()
    with_loop.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_other_dtypes_equal_torch_too(dtype, name, tmp_path):
    kind = getattr(torch, dtype)
    torch.manual_seed(1)
    parameter = torch.randn(1003).to(kind)
    momentum = 0.9 if name == "sgd" else 0.0
    config = OptimizerConfig(name=name, learning_rate=0.01, momentum=momentum)
    layout = Layout.of_shapes([(1003,)], dtype=dtype)
    raw = parameter.view(torch.uint8).numpy().tobytes()
    replica = Replica.create(tmp_path / "state", layout, config, raw)
    more = {"momentum": momentum} if name == "sgd" else {}
    optimizer = getattr(torch.optim, {"sgd": "SGD", "adamw": "AdamW"}[name])(
        [parameter], lr=0.01, foreach=False, fused=False, **more
    )
    for step in range(1, 6):
        parameter.grad = torch.randn(1003).to(kind)
        replica.apply(step, parameter.grad.view(torch.uint8).numpy())
        optimizer.step()
    assert replica.parameters().tobytes() == parameter.view(torch.uint8).numpy().tobytes()
    replica.close()


def test_settings_that_torch_refuses_are_said_in_a_sentence():
    config = OptimizerConfig(name="sgd", learning_rate=0.1, nesterov=True)
    with refused_as(TORCH_REFUSES, kind=ConfigError, error=re.compile("Nesterov")):
        build_optimizer(config, Layout.of_shapes([(1,)]), [torch.zeros(1)])
