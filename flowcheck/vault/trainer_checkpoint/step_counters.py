"""Where in a trainer's checkpoint steps are counted: schedulers, and integers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.optimizer_rules.torch_optimizers import keeps_no_state
from flowcheck.step_numbers import Step

STEP_WORDS = frozenset(
    (
        "step",
        "iter",
        "iteration",
        "global_step",
        "global_steps",
        "updates",
        "it",
        "completed_steps",
    )
)
"""Keys under which trainers keep the number of applied optimizer steps (Lightning's global_step,
DeepSpeed's global_steps, nanoGPT's iter_num, fairseq's num_updates ...), without num_ or _num."""

Path_ = tuple[str, ...]


class CountsSteps(Protocol):
    """What of a Template this file looks at and fills."""

    tree: Any
    optimizer_nodes: tuple[dict[str, Any], ...]
    step: Step
    schedulers: list[dict[str, Any]]
    counters: list[tuple[dict[str, Any], str, Path_]]


def children(node: Any) -> Iterator[tuple[Any, Any]]:
    """(key or place, value) of what a dictionary, list or tuple holds."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)


def find_counters(template: CountsSteps, node: Any, path: Path_, skipped: set[int]) -> None:
    """Schedulers and step counters, wherever the trainer keeps them."""
    if id(node) in skipped:
        return
    if not isinstance(node, dict):
        for place, value in children(node):
            find_counters(template, value, (*path, str(place)), skipped)
        return
    if isinstance(node.get("last_epoch"), int):
        several = isinstance(node.get("_schedulers"), list)  # SequentialLR
        if "num_bad_epochs" in node or not ("_step_count" in node or several):
            raise StateError(findings.UNKNOWN_SCHEDULER(".".join(path)))
        template.schedulers.append(node)
        return
    for key, value in node.items():
        word = str(key).lower().removesuffix("_num").removeprefix("num_")
        if type(value) is int and word in STEP_WORDS:
            template.counters.append((node, key, (*path, str(key))))
        find_counters(template, value, (*path, str(key)), skipped)


def untouched_entries(template: CountsSteps, model: dict[str, Any]) -> tuple[str, ...]:
    """Top-level entries without a part that a restore fills."""
    if not isinstance(template.tree, dict) or template.tree is model:
        return ()
    filled = {id(model), *map(id, template.optimizer_nodes), *map(id, template.schedulers)}
    own = {key for node, key, _ in template.counters if node is template.tree}
    inner = {id(node) for node, _, _ in template.counters if node is not template.tree}

    def holds(node: Any) -> bool:
        if id(node) in filled or id(node) in inner:
            return True
        return any(holds(value) for _, value in children(node))

    return tuple(str(k) for k, v in template.tree.items() if k not in own and not holds(v))


def step_by_counters(template: CountsSteps, what: str) -> int:
    """The step, where the optimizer counts none."""
    told = {int(node[key]) for node, key, _ in template.counters}
    told |= {int(scheduler["last_epoch"]) for scheduler in template.schedulers}
    if not told:
        raise StateError(findings.STEP_NOT_TOLD(what))
    if len(told) > 1:
        raise StateError(findings.STEPS_DIFFER(file=what, steps=sorted(told)))
    return told.pop()


def step_of(optimizer: dict[str, Any] | None) -> int:
    """Steps taken, by the optimizer's own counters; -1 where it keeps none."""
    if optimizer is None or keeps_nothing(optimizer):
        return -1
    return max(_counts(optimizer), default=-1) if optimizer["state"] else 0


def keeps_nothing(optimizer: dict[str, Any]) -> bool:
    """Its state is empty after any step as before the first, by the settings of its groups."""
    return not optimizer["state"] and all(map(keeps_no_state, optimizer["param_groups"]))


def _counts(optimizer: dict[str, Any] | None) -> set[int]:
    states = optimizer["state"].values() if optimizer is not None else ()
    return {int(state["step"]) for state in states if "step" in state}


def counts_differ(optimizer: dict[str, Any] | None) -> bool:
    """Some parameters took no part in some steps: the most is no more than likely all."""
    return len(_counts(optimizer)) > 1
