"""What the rows of optimizers claim, held against torch's own classes."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flowcheck
from flowcheck.config import (
    CLASS_ARGUMENTS,
    GroupConfig,
    OptimizerConfig,
    OptimizerPartConfig,
)
from flowcheck.optimizer_rules.c_kernel_rules import C_KERNELS
from flowcheck.optimizer_rules.optimizer_rule import CKernel, OptimizerRule, StatePresence
from flowcheck.optimizer_rules.torch_optimizers import (
    KEYS,
    NO_OPTIMIZER,
    RULES,
    UNLISTED,
    keeps_no_state,
    rule_named,
)
from flowcheck.replica.optimizer.optimizer_class import rule_of_class, torch_optimizer_classes
from flowcheck.replica.optimizer.state_section_names import writes_gradient

CLASSES = torch_optimizer_classes()
FOLLOWED = sorted(CLASSES.keys() - {"lbfgs", "sparseadam"})
HOWS = ("loop", "foreach", "fused")
OWN_KEYS = ("momentum", "dampening", "nesterov", "betas", "eps", "amsgrad")
"""Keys of [optimizer] that are arguments of some classes of torch's and not of others."""
SWITCHES = {
    "nesterov": (False, True),
    "amsgrad": (False, True),
    "maximize": (False, True),
    "weight_decay": (0.0, 0.1),
    "momentum": (0.0, 0.9),
    "dampening": (0.0, 0.3),
    "centered": (False, True),
    "decoupled_weight_decay": (False, True),
    "lr_decay": (0.0, 0.1),
    "initial_accumulator_value": (0.0, 0.5),
    "beta2_decay": (-0.8, -0.5),
    "d": (1.0, 2.0),
}
"""Arguments whose values choose which operations torch runs."""
ELEMENTS = 192
"""Whole vectors of every instruction set."""


def arguments_of(name: str) -> frozenset[str]:
    return frozenset(inspect.signature(CLASSES[name].__init__).parameters)


def settings_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(implementation, torch's arguments) of every branch that torch has."""
    takes = arguments_of(name)
    own = {key: values for key, values in SWITCHES.items() if key in takes}
    for how in HOWS if "fused" in takes else HOWS[:2] if "foreach" in takes else HOWS[:1]:
        for values in itertools.product(*own.values()):
            more = dict(zip(own, values, strict=True))
            if more.get("nesterov") and (not more.get("momentum", 1.0) or more.get("dampening")):
                continue  # refused by torch
            yield how, more


def leaves_of(*sizes: int, seed: int = 1) -> list[torch.nn.Parameter]:
    """Matrices, as Muon steps nothing else."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size // 4, 4, generator=generator)) for size in sizes]


def made(
    name: str, leaves: list[torch.nn.Parameter], how: str, more: dict[str, Any]
) -> torch.optim.Optimizer:
    takes = arguments_of(name)
    chosen = {key: how == key for key in ("foreach", "fused") if key in takes}
    return CLASSES[name](leaves, lr=0.05, **chosen, **more)


def gradients(leaves: list[torch.nn.Parameter], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in leaves]


def step(
    optimizer: torch.optim.Optimizer, leaves: list[torch.nn.Parameter], seed: int
) -> list[torch.Tensor]:
    """Takes a step; returns the gradients it was given, as it left them."""
    for leaf, gradient in zip(leaves, gradients(leaves, seed), strict=True):
        leaf.grad = gradient
    optimizer.step()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def config_of(name: str, how: str, more: dict[str, Any]) -> OptimizerConfig:
    own = {key: more[key] for key in more if key in OptimizerConfig.__struct_fields__}
    return OptimizerConfig(
        name=name,
        learning_rate=0.05,
        implementation=how,  # type: ignore[arg-type]
        arguments={key: value for key, value in more.items() if key not in own},
        **own,
    )


def states_of(
    optimizer: torch.optim.Optimizer, leaf: torch.nn.Parameter
) -> dict[str, torch.Tensor]:
    held = optimizer.state.get(leaf, {}).items()
    return {key: torch.as_tensor(value) for key, value in held if value is not None}


def test_each_row_is_of_a_class_of_torch_by_its_own_name() -> None:
    for rule in RULES:
        assert CLASSES[rule.name].__name__ == rule.torch_class
        assert rule_named(rule.name) is rule is rule_of_class(CLASSES[rule.name])
    assert len({rule.name for rule in RULES}) == len(RULES)


class SGD(torch.optim.SGD):
    """A script's own, which may do anything."""


def test_keys_of_a_class_are_arguments_of_torchs_and_the_same_in_each_group() -> None:
    known = {
        name
        for torch_class in torch_optimizer_classes().values()
        for name in inspect.signature(torch_class.__init__).parameters
    }
    assert {"lr" if key == "learning_rate" else key for key in CLASS_ARGUMENTS} <= known
    whole, group = OptimizerConfig.__annotations__, GroupConfig.__annotations__
    assert {key: whole[key] for key in CLASS_ARGUMENTS} == {
        key: group[key] for key in group if key not in ("parameters", "arguments")
    }


@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig(name="nosuch"),
        OptimizerConfig(factory="train.py:make"),
        OptimizerConfig(name="adamw", factory="train.py:make"),
        OptimizerConfig(each=(OptimizerPartConfig(name="adamw", parameters="rest"),)),
    ],
)
def test_of_what_is_not_listed_nothing_is_taken_for_granted(config: OptimizerConfig) -> None:
    assert config.rule is UNLISTED
    assert rule_of_class(SGD) is UNLISTED and rule_of_class(torch.optim.SGD) is not UNLISTED
    assert writes_gradient(config) and UNLISTED.square_roots and not UNLISTED.per_element
    assert UNLISTED.state_presence is StatePresence.RECORDED and not UNLISTED.made_as_zeros
    assert UNLISTED.zeros_before_first_step(config) is None and UNLISTED.c_kernel is None
    assert not UNLISTED.known_without_torch and UNLISTED.computes_steps
    assert not NO_OPTIMIZER.computes_steps and OptimizerConfig(name="none").rule is NO_OPTIMIZER


@pytest.mark.parametrize("rule", [r for r in RULES if r.keys is not None], ids=lambda r: r.name)
def test_a_row_lists_the_keys_that_torchs_class_takes(rule: OptimizerRule) -> None:
    takes = arguments_of(rule.name)
    assert set(rule.keys or ()) == takes & set(OWN_KEYS)
    assert takes >= {"weight_decay", "maximize"}, "which every row with keys has"
    assert rule.known_arguments <= takes - set(OWN_KEYS)
    assert set(OWN_KEYS) == KEYS


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_gradient_that_torch_writes_into_is_never_given_without_a_copy(name: str) -> None:
    wrong, told_apart = [], set()
    for how, more in settings_of(name):
        leaves = leaves_of(ELEMENTS, 8)
        optimizer = made(name, leaves, how, more)
        written = False
        for number in (2, 3):
            left = step(optimizer, leaves, number)
            given = gradients(leaves, number)
            written |= not all(torch.equal(a, b) for a, b in zip(left, given, strict=True))
        claimed = writes_gradient(config_of(name, how, more))
        told_apart.add((written, claimed))
        if written and not claimed:
            wrong.append((how, more))
    assert wrong == []
    if name == "sgd":
        assert told_apart == {(False, False), (True, True)}, "its row says exactly when"


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_tells_who_has_a_state_tells_it_of_torchs(name: str) -> None:
    rule = rule_named(name)
    if rule.state_presence is StatePresence.RECORDED:
        return  # a section of its own, whatever torch does
    for how, more in settings_of(name):
        leaves = leaves_of(ELEMENTS, 8, 8)
        optimizer = made(name, leaves, how, more)
        if rule.state_presence is StatePresence.FROM_FIRST_STEP:
            step(optimizer, leaves, 2)
            assert len({bool(states_of(optimizer, leaf)) for leaf in leaves}) == 1
            continue
        counts = (0, 0, 0)
        for expected in ((1, 0, 0), (2, 1, 0), (3, 1, 0)):
            for leaf, count, before in zip(leaves, expected, counts, strict=True):
                leaf.grad = torch.ones_like(leaf) if count > before else None
            optimizer.step()
            counts = expected
            states = [states_of(optimizer, leaf) for leaf in leaves]
            assert tuple(int(own.get("step", 0)) for own in states) == counts
            assert [bool(own) for own in states] == [count > 0 for count in counts]


@pytest.mark.parametrize("name", FOLLOWED)
def test_zeros_before_the_first_step_lead_where_torch_goes_without_a_state(name: str) -> None:
    rule, looked_at = rule_named(name), 0
    for how, more in settings_of(name):
        zeros = rule.zeros_before_first_step(config_of(name, how, more))
        if zeros is None:
            assert not rule.made_as_zeros
            continue
        looked_at += 1
        fresh, given = leaves_of(ELEMENTS), leaves_of(ELEMENTS)
        theirs, ours = made(name, fresh, how, more), made(name, given, how, more)
        like = torch.zeros_like(given[0])
        own = {key: torch.tensor(0.0) if key == "step" else like.clone() for key in zeros}
        if own:
            ours.state[given[0]] = own
        for number in (2, 3):
            step(theirs, fresh, number)
            step(ours, given, number)
            assert set(states_of(theirs, fresh[0])) == set(zeros)
            pairs = [(fresh[0], given[0])] + [
                (value, states_of(ours, given[0])[key])
                for key, value in states_of(theirs, fresh[0]).items()
            ]
            for one, other in pairs:
                assert torch.equal(one, other)
                bits = [t.detach().numpy().tobytes() for t in (one, other)]
                assert not rule.made_as_zeros or bits[0] == bits[1]
    assert looked_at or rule.zeros_before_first_step is UNLISTED.zeros_before_first_step


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_group_without_a_state_is_known_by_its_settings(name: str) -> None:
    for how, more in settings_of(name):
        leaves = leaves_of(8)
        optimizer = made(name, leaves, how, more)
        step(optimizer, leaves, 2)
        group = optimizer.state_dict()["param_groups"][0]
        assert keeps_no_state(group) is not bool(optimizer.state_dict()["state"].get(0))


def moved(name: str, how: str, more: dict[str, Any], order: torch.Tensor) -> bytes:
    """The parameter behind three steps, its elements in another order meanwhile."""
    back = torch.argsort(order)
    (leaf,) = leaves_of(ELEMENTS)
    leaf = torch.nn.Parameter(leaf.detach().view(-1)[order].view(-1, 4))
    optimizer = made(name, [leaf], how, more)
    for number in (2, 3, 4):
        leaf.grad = gradients([leaf], number)[0].view(-1)[order].view(-1, 4)
        optimizer.step()
    return leaf.detach().view(-1)[back].numpy().tobytes()


def is_per_element(name: str) -> bool:
    """Whether an element goes the same way wherever it stands among the others."""
    straight = torch.arange(ELEMENTS)
    mixed = torch.randperm(ELEMENTS, generator=torch.Generator().manual_seed(3))
    return all(
        moved(name, how, more, straight) == moved(name, how, more, mixed)
        for how, more in settings_of(name)
    )


@pytest.mark.parametrize("name", FOLLOWED)
def test_rules_that_step_each_element_by_itself(name: str) -> None:
    assert is_per_element(name) or not rule_named(name).per_element


def test_rules_that_do_not_are_seen() -> None:
    assert not is_per_element("adafactor") and not is_per_element("muon")


PER_ELEMENT = [
    (rule.name, how)
    for rule in RULES
    if rule.per_element
    for how in dict.fromkeys(own for own, _ in settings_of(rule.name))
]


@pytest.mark.parametrize(("name", "how"), PER_ELEMENT)
def test_bits_of_those_do_not_depend_on_threads(name: str, how: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = leaves_of(200_004)
            optimizer = made(name, leaves, how, {})
            for number in (2, 3):
                step(optimizer, leaves, number)
            found.append(leaves[0].detach().numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


class Operations(TorchDispatchMode):
    """The names of all that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


ROOTS = ("sqrt", "norm", "_fused_adam", "_fused_adagrad")


@pytest.mark.parametrize("name", FOLLOWED)
def test_rules_without_square_roots_compute_none(name: str) -> None:
    seen = set()
    for how, more in settings_of(name):
        leaves = leaves_of(ELEMENTS)
        optimizer = made(name, leaves, how, more)
        with Operations() as computed:
            step(optimizer, leaves, 2)
            step(optimizer, leaves, 3)
        seen |= {own for own in computed.names if any(root in own for root in ROOTS)}
    assert rule_named(name).square_roots or not seen
    if rule_named(name).c_kernel is CKernel.ADAM:
        assert seen, "so they would be seen"


def test_refused_classes_cannot_be_stepped_by_a_gradient() -> None:
    leaves = leaves_of(8)
    for name in (rule.name for rule in RULES if rule.refused):
        optimizer = CLASSES[name](leaves, lr=0.1)
        with pytest.raises((TypeError, RuntimeError), match=r"closure|dense"):
            step(optimizer, leaves, 2)
    assert {rule.name for rule in RULES if rule.refused} == CLASSES.keys() - set(FOLLOWED)


def test_the_table_for_readers_has_every_row() -> None:
    table = (Path(flowcheck.__file__).parent / "optimizer_rules/README.md").read_text()
    named = set(re.findall(r"^\|.*", table, re.M))
    for rule in RULES:
        assert any(f"`{rule.torch_class}`" in row.split("|")[1] for row in named), rule.name


def test_each_kernel_of_a_row_is_there() -> None:
    assert C_KERNELS.keys() == set(CKernel)
    assert {rule.c_kernel for rule in RULES} - {None} == set(CKernel)


def test_a_job_file_of_a_listed_optimizer_is_checked_without_torch() -> None:
    listed = [rule.name for rule in (*RULES, NO_OPTIMIZER) if rule.known_without_torch]
    assert {"sgd", "adam", "adamw", "none"} <= set(listed)
    code = (
        "import sys; from flowcheck.config import OptimizerConfig;"
        "assert not {'torch', 'numpy'} & set(sys.modules);"
        "from flowcheck.replica.preflight.optimizer_preflight import *;"
        f"checked = [OptimizerConfig(name=name, learning_rate=0.1) for name in {listed}];"
        "[(check_optimizer_name('--optimizer', c), check_optimizer(c)) for c in checked];"
        "print('torch' in sys.modules);"
        "check_optimizer_name('--optimizer', OptimizerConfig(name='rprop'));"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_table_of_the_page_has_every_class_of_torch_once() -> None:
    page = Path(flowcheck.__file__).parent / "optimizer_rules" / "README.md"
    firsts = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| ")]
    named = [name for cell in firsts for name in re.findall(r"`([A-Z]\w+)`", cell)]
    there = [name for name, one in vars(torch.optim).items() if inspect.isclass(one)]
    assert sorted(named) == sorted(set(there) - {"Optimizer"})
