"""What a module holds besides the trained parameters: frozen parameters, buffers, and the keys
of its state_dict. A tied weight stands under several keys.

Most do not change with steps, and lie once, in a file beside the replica's versions. Buffers that a
forward sends lie in one more for each of the last steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flowcheck.atomic_write import atomic_path
from flowcheck.errors import StateError
from flowcheck.replica.checkpoint_files.safetensors_file import (
    read_tensors,
    safetensors_errors_as_os_errors,
)
from flowcheck.step_numbers import START, Step
from flowcheck.wire.training_job.operator_statements import StatedTensor

SUFFIX = ".beside"


@dataclass(frozen=True, slots=True)
class FrozenAndBuffers:
    """The rest of a module. Tensors are not to be written."""

    keys: tuple[tuple[str, str], ...] = ()
    """(key of its state_dict, name of that tensor), in its order; (): nobody stated them."""
    registered: tuple[str, ...] = ()
    """Names of all parameters, in the order of their registration."""
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    """Their names, in the order of their registration; also of those that are not known."""
    constant_buffers: tuple[str, ...] = ()
    """Buffers that are taken to be the same for ever."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Of these by name, as far as they are known."""
    step: Step = START
    """After which the tensors were so: buffers may have changed since, frozen parameters do not."""
    sent: int | None = None
    """The step of `followed`, a later one; None: these are no later than all others."""
    followed: tuple[str, ...] = ()
    """Buffers that a forward sent."""

    def state_dict(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The module's, as far as it is known. parameters: those that take steps, by name."""
        if not self.keys or parameters.keys() - dict(self.keys).values():
            return dict(parameters)  # another module's keys, or none
        whole = {**self.tensors, **parameters}
        return {key: whole[name] for key, name in self.keys if name in whole}

    @property
    def persistent_buffers(self) -> tuple[str, ...]:
        """Names of buffers that state_dict has: those that are persistent."""
        held = {name for _, name in self.keys}
        return tuple(name for name in self.buffers if name in held)

    @property
    def missing(self) -> tuple[str, ...]:
        """What state_dict has and is not known."""
        held = {name for _, name in self.keys}
        own = (*self.frozen, *self.buffers)
        return tuple(name for name in own if name in held and name not in self.tensors)

    def older(self, step: Step) -> dict[str, int]:
        """{buffer: the step it is of}, where that is another one than `step`."""
        moving = (name for name in self.persistent_buffers if name not in self.constant_buffers)
        known = (name for name in moving if name in self.tensors)
        return {name: of for name in known if (of := self.step_of_buffer(name)) != step}

    def step_of_buffer(self, name: str) -> int:
        """That a buffer is of."""
        return self.step if self.sent is None or name not in self.followed else self.sent


NO_FROZEN_OR_BUFFERS = FrozenAndBuffers()


def frozen_and_buffers_of(
    everything: Sequence[StatedTensor],
    keys: Sequence[tuple[str, str]],
    sent: np.ndarray | None,
    still: Sequence[int] = (),
) -> FrozenAndBuffers:
    """Of a stated model, and of what was sent of it. sent: [bytes] all that takes no gradient, back
    to back, each in index order; None: it was not seen; still: buffers, by their number, that no
    forward changes."""
    others = [tensor for tensor in everything if not tensor.has_gradient]
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
    return FrozenAndBuffers(
        keys=tuple(keys),
        registered=tuple(tensor.name for tensor in everything if not tensor.buffer),
        frozen=tuple(tensor.name for tensor in others if not tensor.buffer),
        buffers=buffers,
        constant_buffers=tuple(buffers[number] for number in still),
        tensors=tensors,
    )


def write_frozen_and_buffers(replica: Path, frozen_and_buffers: FrozenAndBuffers) -> None:
    """Beside the replica's file; it appears whole."""
    path = _path(replica)
    told = {"": json.dumps(to_json_dict(frozen_and_buffers))}
    with safetensors_errors_as_os_errors(path), atomic_path(path, durable=False) as place:
        save_file(
            {n: t.contiguous() for n, t in frozen_and_buffers.tensors.items()}, place, metadata=told
        )


def read_frozen_and_buffers(replica: Path, step: Step | None = None) -> FrozenAndBuffers:
    """Of the replica at that path; NOTHING where no model was stated. step: with the newest buffers
    that were sent of it, or of a step before."""
    path = _path(replica)
    if not path.exists():
        return NO_FROZEN_OR_BUFFERS
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()[""])
    auxiliary = replace(from_json_dict(told), tensors=read_tensors(path))
    for of, own in _sent(replica) if step is not None else ():
        if auxiliary.step < of <= (step or 0):
            with suppress(StateError):  # gone meanwhile
                later = read_tensors(own)
                tensors = {**auxiliary.tensors, **later}
                return replace(auxiliary, tensors=tensors, sent=of, followed=tuple(later))
    return auxiliary


def write_broadcast_buffers(
    replica: Path, step: Step, tensors: Mapping[str, torch.Tensor], first: int
) -> None:
    """Buffers as they were after `step`; those of steps before `first` go."""
    path = _path(replica, step)
    with safetensors_errors_as_os_errors(path), atomic_path(path, durable=False) as place:
        save_file(dict(tensors), place)
    for of, own in _sent(replica):
        if of < first:
            own.unlink(missing_ok=True)


def forget_broadcast_buffers(replica: Path, step: Step) -> None:
    """What was written of `step` and later ones is of another past."""
    for of, own in _sent(replica):
        if of >= step:
            own.unlink(missing_ok=True)


def _sent(replica: Path) -> Iterator[tuple[int, Path]]:
    """(step, file), the newest first."""
    found = ((own.suffix[1:], own) for own in replica.parent.glob(f"{_path(replica).name}.*"))
    yield from sorted(((int(of), own) for of, own in found if of.isdecimal()), reverse=True)


def to_json_dict(auxiliary: FrozenAndBuffers) -> dict[str, object]:
    """All but the tensors, as JSON has it."""
    return {
        "keys": [list(one) for one in auxiliary.keys],
        "registered": list(auxiliary.registered),
        "frozen": list(auxiliary.frozen),
        "buffers": list(auxiliary.buffers),
        "still": list(auxiliary.constant_buffers),
        "step": auxiliary.step,
        "sent": auxiliary.sent,
        "followed": list(auxiliary.followed),
    }


def from_json_dict(told: Mapping[str, object]) -> FrozenAndBuffers:
    """What `to_json_dict` gave, without tensors."""
    keys, step = told["keys"], told["step"]
    assert isinstance(keys, list) and isinstance(step, int)
    pairs = tuple((str(key), str(name)) for key, name in keys)
    kinds = ("registered", "frozen", "buffers", "still")
    registered, frozen, buffers, still = (_names(told[kind]) for kind in kinds)
    sent, followed = told.get("sent"), _names(told.get("followed", []))
    assert sent is None or isinstance(sent, int)
    return FrozenAndBuffers(
        pairs, registered, frozen, buffers, still, step=Step(step), sent=sent, followed=followed
    )


def _names(told: object) -> tuple[str, ...]:
    assert isinstance(told, list)
    return tuple(map(str, told))


def _path(replica: Path, step: Step | None = None) -> Path:
    """The file; step: that of the buffers which were sent of it."""
    name = replica.name + SUFFIX
    return replica.with_name(name if step is None else f"{name}.{step}")
