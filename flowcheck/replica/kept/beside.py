"""What a module holds beside the parameters that take steps: frozen ones, buffers, and the keys of
its state_dict, under several of which a tied weight stands.

They do not change with steps, so they lie once, in a file beside the replica's versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flowcheck.replica.files.tensorfile import read_tensors, writing
from flowcheck.whole import growing
from flowcheck.wire.stated import Tensor

SUFFIX = ".beside"


@dataclass(frozen=True, slots=True)
class Beside:
    """The rest of a module. Tensors are not to be written."""

    keys: tuple[tuple[str, str], ...] = ()
    """(key of its state_dict, name of that tensor), in its order; (): nobody stated them."""
    registered: tuple[str, ...] = ()
    """Names of all parameters, in the order of their registration."""
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    """Their names, in the order of their registration; also of those that are not known."""
    still: tuple[str, ...] = ()
    """Buffers that are taken to be the same for ever."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Of these by name, as far as they are known."""
    step: int = 0
    """After which the tensors were so: buffers may have changed since, frozen parameters do not."""

    def state_dict(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The module's, as far as it is known. parameters: those that take steps, by name."""
        if not self.keys or parameters.keys() - dict(self.keys).values():
            return dict(parameters)  # another module's keys, or none
        whole = {**self.tensors, **parameters}
        return {key: whole[name] for key, name in self.keys if name in whole}

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of buffers that state_dict has: those that are persistent."""
        held = {name for _, name in self.keys}
        return tuple(name for name in self.buffers if name in held)

    @property
    def missing(self) -> tuple[str, ...]:
        """What state_dict has and is not known."""
        held = {name for _, name in self.keys}
        own = (*self.frozen, *self.buffers)
        return tuple(name for name in own if name in held and name not in self.tensors)

    def older(self, step: int) -> dict[str, int]:
        """{buffer: the step it is of}, where that is another one than `step`."""
        moving = (name for name in self.kept if name not in self.still)
        known = (name for name in moving if name in self.tensors)
        return {name: self.step for name in known if self.step != step}


NOTHING = Beside()


def beside_of(
    everything: Sequence[Tensor],
    keys: Sequence[tuple[str, str]],
    sent: np.ndarray | None,
    still: Sequence[int] = (),
) -> Beside:
    """Of a stated model, and of what was sent of it. sent: [bytes] all that takes no gradient, back
    to back, each in index order; None: it was not seen; still: buffers, by their number, that no
    forward changes."""
    others = [tensor for tensor in everything if not tensor.trains]
    tensors: dict[str, torch.Tensor] = {}
    at = 0
    for tensor in others:
        wire = tensor.wire
        if sent is None or wire.dtype is None or at + wire.nbytes > len(sent):
            break  # of buffers nothing was sent (broadcast_buffers=False)
        raw = torch.from_numpy(sent[at : at + wire.nbytes].copy())
        dtype = getattr(torch, wire.dtype)
        tensors[tensor.name] = raw.view(dtype).reshape(wire.sizes)
        at += wire.nbytes
    buffers = tuple(tensor.name for tensor in others if tensor.buffer)
    return Beside(
        keys=tuple(keys),
        registered=tuple(tensor.name for tensor in everything if not tensor.buffer),
        frozen=tuple(tensor.name for tensor in others if not tensor.buffer),
        buffers=buffers,
        still=tuple(buffers[number] for number in still),
        tensors=tensors,
    )


def write_beside(replica: Path, beside: Beside) -> None:
    """Beside the replica's file; it appears whole."""
    path = _path(replica)
    told = {"": json.dumps(to_plain(beside))}
    with writing(path), growing(path, durable=False) as place:
        save_file({n: t.contiguous() for n, t in beside.tensors.items()}, place, metadata=told)


def read_beside(replica: Path) -> Beside:
    """Of the replica at that path; NOTHING where no model was stated."""
    path = _path(replica)
    if not path.exists():
        return NOTHING
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()[""])
    return replace(from_plain(told), tensors=read_tensors(path))


def to_plain(beside: Beside) -> dict[str, object]:
    """All but the tensors, as JSON has it."""
    return {
        "keys": [list(one) for one in beside.keys],
        "registered": list(beside.registered),
        "frozen": list(beside.frozen),
        "buffers": list(beside.buffers),
        "still": list(beside.still),
        "step": beside.step,
    }


def from_plain(told: Mapping[str, object]) -> Beside:
    """What `to_plain` gave, without tensors."""
    keys, step = told["keys"], told["step"]
    assert isinstance(keys, list) and isinstance(step, int)
    pairs = tuple((str(key), str(name)) for key, name in keys)
    kinds = ("registered", "frozen", "buffers", "still")
    registered, frozen, buffers, still = (_names(told[kind]) for kind in kinds)
    return Beside(pairs, registered, frozen, buffers, still, step=step)


def _names(told: object) -> tuple[str, ...]:
    assert isinstance(told, list)
    return tuple(map(str, told))


def _path(replica: Path) -> Path:
    return replica.with_name(replica.name + SUFFIX)
