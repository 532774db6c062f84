"""What of a trainer's state is no tensor, as JSON: read back it is the same, tuples and infinities
included."""

from __future__ import annotations

import math
from typing import Any

from flowcheck.errors import StateError

TUPLE, FLOAT, ITEMS = "__tuple__", "__float__", "__items__"
DEPTH_MAX = 64


def to_plain(value: Any, what: str, depth: int = 0) -> Any:
    """JSON's kinds. Raises StateError for anything that is no plain value, named by `what`."""
    if depth > DEPTH_MAX:
        raise StateError(f"{what}: is nested deeper than {DEPTH_MAX}")
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {TUPLE: [to_plain(one, f"{what}[{i}]", depth + 1) for i, one in enumerate(value)]}
    if isinstance(value, list):
        return [to_plain(one, f"{what}[{i}]", depth + 1) for i, one in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {k: to_plain(one, f"{what}.{k}", depth + 1) for k, one in value.items()}
        pairs = [list(pair) for pair in value.items()]
        return {ITEMS: [to_plain(pair, what, depth + 2) for pair in pairs]}
    if getattr(value, "dim", None) is not None and value.dim() == 0:
        return to_plain(value.item(), what, depth + 1)  # a rate kept as a tensor
    raise StateError(f"{what}: a {type(value).__name__} is no plain value, and cannot be written")


def from_plain(value: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {TUPLE}:
        return tuple(from_plain(value[TUPLE]))
    if value.keys() == {FLOAT}:
        return float(value[FLOAT])
    if value.keys() == {ITEMS}:
        return dict(from_plain(value[ITEMS]))
    return {key: from_plain(one) for key, one in value.items()}
