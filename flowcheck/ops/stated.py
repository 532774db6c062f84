"""The model that a job file's factory makes, as the chain takes it."""

from __future__ import annotations

import msgspec

from flowcheck.config import ModelConfig
from flowcheck.errors import ConfigError
from flowcheck.ops.plan_model import load_model

KEY = "model.factory"


def with_factory(model: ModelConfig) -> ModelConfig:
    """`model` with the names, sizes and types its factory gives. Raises ConfigError where the
    user's code does not work out, or gives something else than what is stated beside it."""
    assert model.factory is not None
    settings = [f"{key}={value!r}" for key, value in model.factory_arguments.items()]
    made = load_model(model.factory, settings, dtype=None, loss=None, key=KEY)
    names = tuple(tensor.name for tensor in made.trained)
    parameters = tuple(tensor.wire for tensor in made.trained)
    if model.names and model.names != names:
        raise ConfigError("model.names", model.names[0], f"are not those of {model.factory}")
    if model.parameters and model.parameters != parameters:
        raise ConfigError("model.parameters", "", f"are not those of {model.factory}")
    if not isinstance(model.order, str) and model.order and sorted(model.order) != sorted(names):
        wrong = next((name for name in model.order if name not in names), model.order[0])
        right = f"the order must have each name of {model.factory} once"
        raise ConfigError("model.order", wrong, right)
    return msgspec.structs.replace(model, names=names, parameters=parameters)
