"""What of the trainer's state is asked, read at the end of a step.

The end of a step is when every optimizer that holds parameters of the model has made as many steps
as the others. Nothing of torch is changed: torch's own hook for all optimizers tells when one has
stepped (torch/optim/optimizer.py, register_optimizer_step_post_hook), and the model is the
DistributedDataParallel object that is there by then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from flowcheck.hook.protocol import Answer, AnsweredParameter, AskedParameter, Request

Finish = Callable[[], Answer]
"""Makes the answer of what was read; takes the values off the device. Not for the trainer's
thread."""


@dataclass(slots=True)
class _Read:
    """Values of one parameter, on its device."""

    index: int
    name: str
    parameter: torch.Tensor
    values: dict[str, torch.Tensor]
    own_step: Any


@dataclass(slots=True)
class _Collecting:
    """A request whose values are being read."""

    request: Request
    deliver: Callable[[Finish | str], None]
    step: int | None = None
    """Count of the step whose values are read; None: no optimizer has stepped since."""
    read: dict[int, _Read] = field(default_factory=dict)
    event: Any = None


class StepValues:
    """The trainer's side: told after each step of each optimizer, by the trainer's thread."""

    def __init__(self) -> None:
        self._wanted: _Collecting | None = None
        self._counts: dict[int, int] = {}
        """{id of an optimizer: steps that it made}"""
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._model: list[tuple[str, torch.Tensor]] | None = None
        self._owner: dict[int, int] = {}
        """{id of a parameter of the model: id of its optimizer}"""

    def ask(self, request: Request, deliver: Callable[[Finish | str], None]) -> None:
        """Asks for the values at the next end of a step; an earlier request is given up. deliver:
        gets them, or why there are none, in the trainer's thread."""
        self._wanted = _Collecting(request, deliver)

    def forget(self) -> None:
        """Gives the request up."""
        self._wanted = None

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step."""
        own = id(optimizer)
        self._optimizers[own] = optimizer
        self._counts[own] = count = self._counts.get(own, 0) + 1
        wanted = self._wanted
        if wanted is None:
            return
        why = self._know_model()
        if why is None:
            why = self._read_of(wanted, own, count)
        if why is not None:
            self._done(wanted)
            wanted.deliver(why)

    def _done(self, wanted: _Collecting) -> None:
        if self._wanted is wanted:  # else another one was asked for meanwhile
            self._wanted = None

    def _know_model(self) -> str | None:
        """Finds the model and who steps its parameters; why not, where it cannot."""
        if self._model is None:
            # By type alone: objects that pose as another one's class are not asked.
            found = [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel)]
            if len(found) != 1:
                return f"{len(found)} DistributedDataParallel models are there, not one"
            ignored = found[0].parameters_to_ignore
            self._model = [
                (name, p)
                for name, p in found[0].module.named_parameters()
                if p.requires_grad and name not in ignored
            ]
        ours = {id(p) for _, p in self._model}
        self._owner = {}
        for own, optimizer in self._optimizers.items():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if id(p) in ours and self._owner.setdefault(id(p), own) != own:
                        return "two optimizers step one parameter"
        return None

    def _read_of(self, wanted: _Collecting, own: int, count: int) -> str | None:
        """Reads the asked parameters that this optimizer steps. Why it cannot be answered; None:
        it was, or will be."""
        assert self._model is not None
        owners = set(self._owner.values())
        if own not in owners:
            return None
        counts = {self._counts[one] for one in owners}
        if wanted.step is None:
            if max(counts) - min(counts) > 1 or (len(counts) > 1 and count != max(counts)):
                return "the optimizers have made different numbers of steps"
            if sum(self._counts[one] == count for one in owners) != 1:
                return None  # amid a step: values of others are read already too late
            wanted.step = count
        if count != wanted.step:
            return "an optimizer stepped again before the others did"
        for asked in wanted.request.parameters:
            if asked.index >= len(self._model):
                return f"there are {len(self._model)} parameters, and number {asked.index} is asked"
            name, parameter = self._model[asked.index]
            if self._owner.get(id(parameter)) == own:
                read = _values(asked, name, parameter, self._optimizers[own])
                if isinstance(read, str):
                    return read
                wanted.read[asked.index] = read
        if counts == {count}:
            self._done(wanted)
            missing = [a.index for a in wanted.request.parameters if a.index not in wanted.read]
            if missing:
                return f"no optimizer steps parameter {missing[0]}"
            wanted.deliver(_finish(wanted))
        return None


def _values(
    asked: AskedParameter, name: str, parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> _Read | str:
    """Copies what is asked, on the parameter's device, behind the step."""
    own = parameter.detach()
    if asked.ranges[-1][1] > own.numel():
        return f"{name} has {own.numel()} elements, and {asked.ranges[-1][1]} are asked"
    spans = [torch.arange(start, stop) for start, stop in asked.ranges]
    where = torch.cat(spans).to(own.device)
    values = {"": own}
    step = None
    for key, state in optimizer.state.get(parameter, {}).items():
        if key == "step":  # counted on by the next step
            step = state.detach().clone() if isinstance(state, torch.Tensor) else state
        elif isinstance(state, torch.Tensor) and state.shape == own.shape:
            values[key] = state.detach()
    read: dict[str, torch.Tensor] = {}
    for key, tensor in values.items():
        flat = _in_memory_order(tensor, own)
        if flat is None:
            return f"{name}: {key or 'the parameter'} does not lie as the parameter does"
        read[key] = flat.index_select(0, where)
    return _Read(asked.index, name, own, read, step)


def _in_memory_order(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """[elements] as they lie in memory; None: it lies otherwise than `like`."""
    pairs = zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or any(
        a != b for size, a, b in pairs if size > 1
    ):
        return None
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


def _finish(wanted: _Collecting) -> Finish:
    if any(one.parameter.is_cuda for one in wanted.read.values()):
        wanted.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        wanted.event.record()

    def made() -> Answer:
        if wanted.event is not None:
            wanted.event.synchronize()
        return Answer(
            wanted.step or 0, tuple(_answered(wanted.read[i]) for i in sorted(wanted.read))
        )

    return made


def _answered(read: _Read) -> AnsweredParameter:
    held = {key: tensor.cpu() for key, tensor in read.values.items()}
    value = held.pop("")
    step = read.own_step
    return AnsweredParameter(
        index=read.index,
        name=read.name,
        shape=tuple(read.parameter.shape),
        dtype=_word(value),
        value=_bytes(value),
        states={key: _bytes(tensor) for key, tensor in held.items()},
        state_dtypes={key: _word(tensor) for key, tensor in held.items()},
        own_step=None if step is None else int(step),
    )


def _word(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())
