"""Finds, reads and fills master weights, weight averages and loss scale in a trainer's checkpoint.

Trainers give them different keys, so that each is found by its form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.catalog.restored_state import AVERAGES, LOSS_SCALE, MASTERS
from flowcheck.findings.finding import Entry, Finding
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.trainer_checkpoint.checkpoint_template import AVERAGED, CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.step_counters import children

SCALER_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
"""Keys of torch.amp.GradScaler.state_dict."""


def scaler_in(tree: Any) -> dict[str, Any] | None:
    """The loss scaler's state in the tree; None without one. Raises StateError for several."""
    found = [n for n in _nodes(tree) if isinstance(n, dict) and n.keys() >= SCALER_KEYS]
    scaler: dict[str, Any] | None = _one(found, findings.SEVERAL_LOSS_SCALES)
    return scaler


def masters_in(template: CheckpointTemplate, layout: Layout) -> list[torch.Tensor] | None:
    """[parameter] master weights: a list or dictionary of tensors with the parameters' shapes, in
    their order and in the dtype of `layout`. None without. layout: layout of the master weights.
    Raises StateError for several."""
    wanted = [(p.shape, getattr(torch, layout.dtype_of(p))) for p in layout.parameters]
    found = []
    for node in _nodes(template.tree):
        if node is template.model or (isinstance(node, dict) and AVERAGED in node):
            continue
        own = list(node.values()) if isinstance(node, dict) else list(node)
        tensors = [value for value in own if isinstance(value, torch.Tensor)]
        if [(tuple(t.shape), t.dtype) for t in tensors] == wanted:
            found.append(tensors)
    masters: list[torch.Tensor] | None = _one(found, findings.SEVERAL_MASTERS)
    return masters


def averages_in(template: CheckpointTemplate) -> tuple[list[torch.Tensor], int] | None:
    """([parameter] averages, number of updates) from AveragedModel.state_dict; None without. Raises
    StateError if there are several, or if a parameter has no average."""
    found = [n for n in _nodes(template.tree) if isinstance(n, dict) and AVERAGED in n]
    node = _one(found, findings.SEVERAL_AVERAGES)
    if node is None:
        return None
    by_name = {name.removeprefix("module.").removeprefix("module."): t for name, t in node.items()}
    plain = [name.removeprefix("module.") for name in template.names]
    lost = [name for name in plain if name not in by_name]
    if lost:
        raise StateError(findings.PARAMETER_NOT_AVERAGED(lost[0]))
    return [by_name[name] for name in plain], int(node[AVERAGED])


def fill_auxiliary(template: CheckpointTemplate, snapshot: Snapshot) -> list[tuple[Finding, Any]]:
    """Puts master weights, averages and loss scale of the snapshot into the template, where the
    template has them. Returns (finding, node of the tree) for each filled part."""
    more = snapshot.optional_state
    replaced: list[tuple[Finding, Any]] = []
    scaler = scaler_in(template.tree) if more.scaler else None
    if scaler is not None:
        scaler["scale"] = more.scaler["scale"]
        scaler["_growth_tracker"] = int(more.scaler["growth_tracker"])
        replaced.append((LOSS_SCALE(), scaler))
    if more.masters is not None:
        masters = masters_in(template, stepped_layout(snapshot.optimizer, snapshot.layout))
        for own, new in zip(masters or (), more.masters.values(), strict=masters is not None):
            own.detach().copy_(new)
        replaced += [(MASTERS(), None)] if masters is not None else []
    averages = averages_in(template) if more.averages is not None else None
    if averages is not None and more.averages is not None:
        for own, new in zip(averages[0], more.averages.values(), strict=True):
            own.detach().copy_(new)
        replaced.append((AVERAGES(), _count(template, more.average_updates)))
    return replaced


def _count(template: CheckpointTemplate, averaged: int) -> dict[str, Any]:
    """Sets the number of updates of the averages. Returns the node of the tree that holds them."""
    held = (n for n in _nodes(template.tree) if isinstance(n, dict) and AVERAGED in n)
    node: dict[str, Any] = next(held)
    own = node[AVERAGED]
    node[AVERAGED] = own.fill_(averaged) if isinstance(own, torch.Tensor) else averaged
    return node


def _nodes(node: Any) -> Iterator[Any]:
    if isinstance(node, dict | list | tuple):
        yield node
    for _, value in children(node):
        yield from _nodes(value)


def _one(found: list[Any], several: Entry) -> Any:
    if len(found) > 1:
        raise StateError(several(len(found)))
    return found[0] if found else None
