"""Gives tensors that share flat memory a storage of their own, without a copy. torch.save writes
whole storages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def with_own_storage(node: Any, made: dict[int, torch.Tensor] | None = None) -> Any:
    """The tree with each tensor over a storage of exactly its bytes. A tensor that stands in
    several places stays a single tensor."""
    made = {} if made is None else made
    if isinstance(node, torch.Tensor):
        if id(node) not in made:
            made[id(node)] = _alone(node)
        return made[id(node)]
    if isinstance(node, dict):
        return type(node)((key, with_own_storage(value, made)) for key, value in node.items())
    if isinstance(node, list):
        return [with_own_storage(value, made) for value in node]
    if type(node) is tuple:  # a torch.Size holds no tensors, and stays one
        return tuple(with_own_storage(value, made) for value in node)
    return node


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.untyped_storage()
    size_bytes = tensor.numel() * tensor.element_size()
    if whole.nbytes() == size_bytes:
        return tensor.detach()
    if not size_bytes:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
    own = torch.from_numpy(flat.view(torch.uint8).numpy()).view(tensor.dtype)
    return torch.as_strided(own, tensor.shape, tensor.stride())


def tensor_memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor in the order of memory, as a view."""
    flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def address_of(raw: memoryview) -> tuple[int, int]:
    """(address of the first byte, number of bytes)."""
    return int(np.frombuffer(raw, np.uint8).ctypes.data), raw.nbytes


def labels_by_address(tensors: Mapping[str, torch.Tensor]) -> dict[tuple[int, int], str]:
    """{`address_of` a tensor: its label}, for tensors that have bytes."""
    return {address_of(tensor_memory(t)): label for label, t in tensors.items() if t.numel()}


def labelled_tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of every tensor, in order. A tensor that stands in several places comes once,
    with its first path."""
    seen: set[int] = set()
    for label, tensor in _met(tree, ()):
        own = tensor.untyped_storage()._cdata
        if own not in seen:
            seen.add(own)
            yield label, tensor


def _met(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(node, torch.Tensor):
        yield "/".join(path), node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _met(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            yield from _met(value, (*path, str(place)))
