"""Loads the user's model on torch's meta device: parameters, buffers and the order of
gradients, without memory for weights."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import (
    FACTORY_ARGUMENT,
    NO_GRADIENTS,
    NO_SHAPE_YET,
    NOT_A_TORCH_MODULE,
    SCALAR_LOSS,
    SPARSE_MODULE,
)
from flowcheck.findings.catalog.refused_settings import ONE_OF
from flowcheck.replica.user_code import load_callable, user_error_finding
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import StatedTensor

if TYPE_CHECKING:
    import torch


class MetaModel(msgspec.Struct, frozen=True, kw_only=True):
    """A module as DistributedDataParallel sees it, in registration order. Shapes and dtypes only,
    no values."""

    name: str
    tensors: tuple[StatedTensor, ...]
    """All parameters in registration order, frozen ones included."""
    buffers: tuple[StatedTensor, ...]
    keys: tuple[tuple[str, str], ...] = ()
    """(key in the module's state_dict, name of that tensor here), in the order of the state_dict.
    A tied weight has several keys; a non-persistent buffer has none."""
    ready: tuple[int, ...] | None = None
    """Indices of the trained parameters in the order in which the backward pass finished their
    gradients; None: no loss was given, so no backward pass ran."""

    @property
    def trained(self) -> tuple[StatedTensor, ...]:
        """The parameters that require gradients, in registration order."""
        return tuple(tensor for tensor in self.tensors if tensor.has_gradient)


def load_model(
    where: str,
    settings: Sequence[str],
    *,
    dtype: str | None,
    loss: str | None,
    key: str = "MODEL",
) -> MetaModel:
    """Calls the factory at `where` on torch's meta device and reads the module that it returns.

    settings: keyword arguments of the factory, such as "layers=12".
    dtype: name of a floating-point torch dtype that the module is cast to; None: no cast.
    loss: a second factory; it is called with the module and returns a scalar loss. Its backward
    pass gives the order of gradients. None: the order stays unknown.
    key: name of the option that `where` came from, for error messages.

    Raises ConfigError where a factory cannot be imported, raises, or returns something that DDP
    does not support.
    """
    import torch

    factory = load_callable(key, where)
    arguments = dict(_setting(text) for text in settings)
    with torch.device("meta"):
        module = _called(key, where, factory, **arguments)
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(key, where, NOT_A_TORCH_MODULE(type(module).__name__))
        if dtype is not None:
            module = module.to(_type_of(dtype))
        _refuse(key, where, module)
        tensors = tuple(_tensor(n, p, p.requires_grad) for n, p in module.named_parameters())
        buffers = tuple(_tensor(n, b, False, buffer=True) for n, b in module.named_buffers())
        keys = _keys(module)
        ready = None if loss is None else _ready_order(loss, module)
    name = type(module).__name__
    return MetaModel(name=name, tensors=tensors, buffers=buffers, keys=keys, ready=ready)


def _called(key: str, where: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return function(*given, **named)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(key, where, user_error_finding(error)) from error


def _setting(text: str) -> tuple[str, object]:
    """A keyword argument: numbers, True, None and quoted words as Python has them, else a word."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError("--set", text, FACTORY_ARGUMENT())
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


FLOATS = ("float32", "bfloat16", "float16", "float64")


def _type_of(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError("--dtype", name, ONE_OF(FLOATS))
    return found


def _refuse(key: str, where: str, module: torch.nn.Module) -> None:
    """What DistributedDataParallel would not take, or does not put on the wire as others."""
    import torch

    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ConfigError(key, where, NO_SHAPE_YET(name))
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) and part.sparse:
            raise ConfigError(key, where, SPARSE_MODULE(name))
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(key, where, NO_GRADIENTS())


def _keys(module: torch.nn.Module) -> tuple[tuple[str, str], ...]:
    """(key of its state_dict, name of that tensor)."""
    named = (*module.named_parameters(), *module.named_buffers())
    of = {id(tensor): name for name, tensor in named}
    held = module.state_dict(keep_vars=True)
    return tuple((key, of[id(value)]) for key, value in held.items() if id(value) in of)


def _tensor(name: str, tensor: torch.Tensor, trains: bool, *, buffer: bool = False) -> StatedTensor:
    wire = Parameter(
        sizes=tuple(tensor.size()),
        strides=tuple(tensor.stride()),
        element_bytes=tensor.element_size(),
        dtype=str(tensor.dtype).removeprefix("torch."),
    )
    return StatedTensor(name=name, wire=wire, has_gradient=trains, buffer=buffer)


def _ready_order(where: str, module: torch.nn.Module) -> tuple[int, ...]:
    """Of the gradients, as DDP's own hooks on the accumulation of each see it."""
    import torch

    order: list[int] = []
    trained: list[Any] = [p for p in module.parameters() if p.requires_grad]
    for index, parameter in enumerate(trained):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
    loss = _called("--loss", where, load_callable("--loss", where), module)
    if not isinstance(loss, torch.Tensor) or loss.dim():
        raise ConfigError("--loss", where, SCALAR_LOSS())
    _called("--loss", where, loss.backward)
    return tuple(order)
