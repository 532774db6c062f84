"""Reads a trainer's checkpoint as a template: finds the model, optimizer state, schedules and step
counters in it.

Any checkpoint of the job serves as template. Tensors are found by order and shape; a model that
fits in two ways is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer.optimizer_builder import ParameterNumber
from flowcheck.replica.param_layout import Layout
from flowcheck.step_numbers import Step
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.optimizer_matching import join_optimizers
from flowcheck.vault.trainer_checkpoint.param_numbering import (
    OptimizerNumber,
    numbers_of_parameters,
)
from flowcheck.vault.trainer_checkpoint.step_counters import (
    children,
    counts_differ,
    find_counters,
    is_stateless,
    step_by_counters,
    step_of,
    untouched_entries,
)

KeyPath = tuple[str, ...]
AVERAGED = "n_averaged"
"""A key of the state_dict of torch.optim.swa_utils.AveragedModel. The averaged model in it is not
taken for the job's model."""
NAMES_SHOWN = 10
"""Most tensors that a refusal names."""
HALVES = (torch.bfloat16, torch.float16)
"""Types in which a model is saved rounded, as save_pretrained does after `.half()`."""
_Model = tuple[dict[str, Any], list[tuple[str, torch.Tensor]]]
"""(the module's state_dict, (name, tensor) of every parameter in registration order)"""
_Kind = tuple[torch.dtype, tuple[int, ...]]
"""(dtype, shape) of a tensor."""


@dataclass(slots=True)
class CheckpointTemplate:
    """The parts of a trainer's checkpoint that change from step to step."""

    tree: Any
    """The whole checkpoint as torch loaded it."""
    model: dict[str, Any]
    """The part of `tree` that is the module's state_dict."""
    names: tuple[str, ...]
    """The trainer's names of the parameters, in registration order."""
    parameters: tuple[torch.Tensor, ...]
    """The parameters in registration order; a tied weight comes once."""
    non_parameters: tuple[str, ...]
    """Names of the tensors of `model` that are not trainable parameters: buffers, frozen ones."""
    optimizer: dict[str, Any] | None
    """The state_dict of torch.optim.Optimizer; several are joined into one. None: there is none."""
    order: tuple[OptimizerNumber, ...]
    """order[i]: the optimizer's number of parameter i; () without an optimizer."""
    step: Step
    """Number of optimizer steps before the checkpoint was written."""
    tells_step: bool = field(default=True, kw_only=True)
    """False: nothing in the checkpoint shows its step. `step` is then the stated one, or 0."""
    optimizer_nodes: tuple[dict[str, Any], ...] = ()
    """The parts of `tree` that hold optimizers' states."""
    schedulers: list[dict[str, Any]] = field(default_factory=list)
    """state_dicts of learning-rate schedulers."""
    counters: list[tuple[dict[str, Any], str, KeyPath]] = field(default_factory=list)
    """(dictionary, key, path in `tree`) of integers that count steps."""
    untouched: tuple[str, ...] = ()
    """Top-level keys of `tree` that hold nothing that a restore fills in."""

    @property
    def skipped(self) -> int:
        """Number of steps that the loss scaler skipped, which the optimizer does not count."""
        taken = step_of(self.optimizer)
        return max(self.step - taken, 0) if taken >= 0 and _scaled(self.tree) else 0

    def optimizer_state(self, index: int) -> Mapping[str, torch.Tensor]:
        """The optimizer's state of parameter `index` by torch's names; {} before the first step."""
        if self.optimizer is None:
            return {}
        found: Mapping[str, torch.Tensor] = self.optimizer["state"].get(self.order[index], {})
        return found


def stated_names(layout: Layout) -> tuple[str, ...]:
    """The trainer's parameter names in registration order; empty if they are not stated."""
    own = tuple(p.name for p in layout.parameters)
    return own if own != tuple(f"param.{i}" for i in range(len(own))) else ()


def read_template(
    tree: Any,
    layout: Layout,
    names: Sequence[str],
    what: str,
    step: Step | None = None,
    order: Sequence[ParameterNumber] | None = None,
    *,
    may_be_rounded: bool = False,
) -> CheckpointTemplate:
    """Reads a checkpoint's tree as a template for a replica of this layout.

    names: the trainer's parameter names in registration order, needed where order and shapes fit in
    several ways. what: the tree's name in errors. step: the checkpoint's step, for a tree that does
    not show it. order: [parameter] the optimizer's number (param_groups.py), needed with several
    parameter groups. may_be_rounded: where no model has the layout's types, one that was saved in
    half precision is read. Raises StateError if the tree has no model of this layout, or if one
    fits in several ways.
    """
    types = [[getattr(torch, layout.dtype_of(p)) for p in layout.parameters]]
    if may_be_rounded:
        types += [[_rounded(one, half) for one in types[0]] for half in HALVES]
    with structure_errors_as_state_errors(what):
        return _read(tree, layout, names, what, step, order, types)


def _read(
    tree: Any,
    layout: Layout,
    names: Sequence[str],
    what: str,
    step: Step | None,
    order: Sequence[ParameterNumber] | None,
    types: Sequence[Sequence[torch.dtype]],
) -> CheckpointTemplate:
    nodes = _optimizers_in(tree)
    tried = (_models_in(tree, nodes, layout, names, what, own) for own in types)
    models = next(filter(None, tried), [])
    if len(models) > 1:  # masters have the same names and shapes
        models = [each for each in models if _of_types(each[1], layout)] or models
    if not models:
        wanted = {"parameters": len(layout.parameters), "dtype": layout.dtype}
        shape = layout.parameters[0].shape
        raise StateError(findings.NO_MODEL(file=what, shape=shape, **wanted))
    if len(models) > 1:
        raise StateError(findings.SEVERAL_MODELS(file=what, models=len(models)))
    model, chosen = models[0]
    found_names = tuple(name for name, _ in chosen)
    parameters = tuple(tensor for _, tensor in chosen)
    held = {tensor.data_ptr() for tensor in parameters}
    others = tuple(
        name
        for name, value in model.items()
        if isinstance(value, torch.Tensor) and value.data_ptr() not in held
    )

    def numbers(optimizer: dict[str, Any]) -> tuple[OptimizerNumber, ...]:
        return numbers_of_parameters(optimizer, layout, found_names, what, order)

    optimizer = nodes[0] if nodes else None
    if len(nodes) > 1:
        optimizer = join_optimizers(nodes, order, numbers, what)
    own = numbers(optimizer) if optimizer is not None else ()
    taken = Step(step_of(optimizer))
    template = CheckpointTemplate(
        tree, model, found_names, parameters, others, optimizer, own, taken
    )
    template.optimizer_nodes = tuple(nodes)
    skipped = {id(model), *map(id, nodes)}
    find_counters(template, tree, (), skipped)
    silent = template.step < 0 and not (template.counters or template.schedulers)
    if silent and (step is not None or (optimizer is not None and is_stateless(optimizer))):
        template.step, template.tells_step = step or Step(0), False
    elif template.step < 0:
        template.step = Step(step_by_counters(template, what))
    elif _scaled(tree):  # what it skips, counts as a step everywhere but in the optimizer
        told = [int(node[key]) for node, key, _ in template.counters]
        told += [int(scheduler["last_epoch"]) for scheduler in template.schedulers]
        template.step = Step(max((template.step, *told)))
    elif counts_differ(optimizer) and (template.counters or template.schedulers):
        template.step = Step(max(template.step, step_by_counters(template, what)))
    template.untouched = untouched_entries(template, model)
    return template


def _models_in(
    tree: Any,
    optimizers: Sequence[dict[str, Any]],
    layout: Layout,
    names: Sequence[str],
    what: str,
    types: Sequence[torch.dtype],
) -> list[_Model]:
    """Every dictionary of the tree that is the model's, with its parameters of these types."""
    of_optimizers = {id(one) for node in optimizers for _, one in _dicts(node["state"])}
    return [
        found
        for _, node in _dicts(tree)
        if AVERAGED not in node
        # The moments of a model of one parameter have its shape.
        and id(node) not in of_optimizers
        and (found := _parameters_in(node, layout, names, what, types)) is not None
    ]


def _rounded(own: torch.dtype, half: torch.dtype) -> torch.dtype:
    return half if is_rounding(own, half) else own


def is_rounding(own: torch.dtype, to: torch.dtype) -> bool:
    """Whether a value of one floating-point type is rounded when it is saved in the other: a type
    of fewer bytes that torch itself rounds to."""
    return own.is_floating_point and to in (*HALVES, torch.float32) and to.itemsize < own.itemsize


def type_or_shape_differs(name: str, theirs: torch.Tensor, own: torch.Tensor) -> Finding:
    """The finding that a tensor's dtype or shape differs. theirs: the tensor in the trainer's
    checkpoint; own: the replica's tensor."""
    return findings.OTHER_TYPE_OR_SHAPE(
        tensor=name,
        dtype=str(theirs.dtype),
        shape=theirs.shape,
        own_dtype=str(own.dtype),
        own_shape=own.shape,
    )


def _of_types(chosen: Sequence[tuple[str, torch.Tensor]], layout: Layout) -> bool:
    return all(
        value.dtype == getattr(torch, layout.dtype_of(p))
        for (_, value), p in zip(chosen, layout.parameters, strict=True)
    )


def _scaled(tree: Any) -> bool:
    """Whether the tree holds the state of a loss scaler."""
    return any("_growth_tracker" in node for _, node in _dicts(tree))


def _dicts(node: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """(path, dictionary) of every dictionary in the tree whose keys are texts."""
    if isinstance(node, dict) and node and all(isinstance(key, str) for key in node):
        yield path, node
    for key, value in children(node):
        yield from _dicts(value, (*path, str(key)))


def _parameters_in(
    node: dict[str, Any],
    layout: Layout,
    names: Sequence[str],
    what: str,
    dtypes: Sequence[torch.dtype],
) -> _Model | None:
    """(the dictionary, (name, tensor) of every parameter in registration order) if the dictionary
    is the model's; else None. what: the file's name in errors. dtypes: of the parameters, where
    they have no names. Raises StateError if it fits in several ways."""
    wanted = [p.shape for p in layout.parameters]
    tensors: list[tuple[str, torch.Tensor]] = []
    held: set[int] = set()
    for name, value in node.items():
        if isinstance(value, torch.Tensor) and (
            value.data_ptr() not in held or not value.numel()
        ):  # a tied weight has two names and counts under its first, as in named_parameters
            held.add(value.data_ptr())
            tensors.append((name, value))
    if names:
        by_name = {name.removeprefix("module."): (name, value) for name, value in tensors}
        if not all(name in by_name for name in names):
            return None
        chosen = [by_name[name] for name in names]
        return (node, chosen) if [tuple(v.shape) for _, v in chosen] == wanted else None
    fitting = [(n, v) for n, v in tensors if v.dtype in dtypes]
    kinds = list(zip(dtypes, wanted, strict=True))
    ways = _embeddings([(v.dtype, tuple(v.shape)) for _, v in fitting], kinds)
    if not ways:
        return None
    if len(ways) > 1:
        either = tuple(fitting[i][0] for i in sorted({*ways[0]} ^ {*ways[1]}))
        shown = either or tuple(fitting[i][0] for i in ways[0])
        raise StateError(findings.AMBIGUOUS_PARAMETERS(file=what, names=shown[:NAMES_SHOWN]))
    return node, [fitting[i] for i in ways[0]]


def _embeddings(have: Sequence[_Kind], wanted: Sequence[_Kind]) -> list[list[int]]:
    """Up to two ways to find `wanted` as a subsequence of `have`, as indices."""
    if len(have) < len(wanted):
        return []
    first, last = _greedy(have, wanted), _greedy(have[::-1], wanted[::-1])
    if first is None or last is None:
        return []
    backward = [len(have) - 1 - i for i in reversed(last)]
    return [first] if first == backward else [first, backward]


def _greedy(have: Sequence[_Kind], wanted: Sequence[_Kind]) -> list[int] | None:
    """The earliest way to find `wanted` in `have`; None: there is none. With both reversed this
    gives the latest way, which differs if there are several."""
    found: list[int] = []
    at = 0
    for kind in wanted:
        while at < len(have) and have[at] != kind:
            at += 1
        if at == len(have):
            return None
        found.append(at)
        at += 1
    return found


def _optimizers_in(tree: Any) -> list[dict[str, Any]]:
    return [
        node
        for _, node in _dicts(tree)
        if isinstance(node.get("state"), dict) and isinstance(node.get("param_groups"), list)
    ]
