"""Finds the numbers that count steps in a trainer's checkpoint: in schedulers, and under keys of
the trainer."""

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
    """The fields of a CheckpointTemplate that this module reads and fills."""

    tree: Any
    optimizer_nodes: tuple[dict[str, Any], ...]
    step: Step
    schedulers: list[dict[str, Any]]
    counters: list[tuple[dict[str, Any], str, Path_]]


def children(node: Any) -> Iterator[tuple[Any, Any]]:
    """(key or position, value) of each part of a dictionary, list or tuple."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)


def find_counters(template: CountsSteps, node: Any, path: Path_, skipped: set[int]) -> None:
    """Adds all schedulers and step counters below `node` to the template. path: of the node in the
    tree. skipped: ids of nodes that are not searched. Raises StateError for an unknown
    scheduler."""
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
    """Top-level keys of the tree below which a restore fills in nothing."""
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
    """The step by counters and schedulers. what: the file's name in errors. Raises StateError if
    there are none, or if they differ."""
    told = {int(node[key]) for node, key, _ in template.counters}
    told |= {int(scheduler["last_epoch"]) for scheduler in template.schedulers}
    if not told:
        raise StateError(findings.STEP_NOT_TOLD(what))
    if len(told) > 1:
        raise StateError(findings.STEPS_DIFFER(file=what, steps=sorted(told)))
    return told.pop()


def step_of(optimizer: dict[str, Any] | None) -> int:
    """The number of steps by the optimizer's own counters; -1 if it has no counters."""
    if optimizer is None or is_stateless(optimizer):
        return -1
    return max(_counts(optimizer), default=-1) if optimizer["state"] else 0


def is_stateless(optimizer: dict[str, Any]) -> bool:
    """Whether the optimizer's state is empty, and stays so after steps by the settings of its
    groups."""
    return not optimizer["state"] and all(map(keeps_no_state, optimizer["param_groups"]))


def _counts(optimizer: dict[str, Any] | None) -> set[int]:
    states = optimizer["state"].values() if optimizer is not None else ()
    return {int(state["step"]) for state in states if "step" in state}


def counts_differ(optimizer: dict[str, Any] | None) -> bool:
    """Whether parameters have different counts, since some took no part in some steps. The largest
    count is then only probably the number of all steps."""
    return len(_counts(optimizer)) > 1
