"""The weights that a model starts with whose factory and seed are stated, made in a process of its
own: on the CPU, by the user's code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from flowcheck.replica.sharding.sharded_model_probe import answer, check_is_module, run_probe
from flowcheck.replica.user_code import load_callable

KEY = "model.factory"


def write_seeded_weights(
    factory: str, arguments: Mapping[str, object], seed: int, place: Path
) -> None:
    """Writes what the trainable parameters are behind `torch.manual_seed(seed)` and the factory,
    back to back in registration order, each in index order. Raises ConfigError."""
    words = (json.dumps(dict(arguments)), str(seed), str(place))
    run_probe("flowcheck.replica.sharding.seeded_weights", factory, *words, key=KEY)


def _main(factory: str, arguments: str, seed: str, place: str) -> None:
    import torch

    make = load_callable(KEY, factory)
    torch.manual_seed(int(seed))
    model = make(**json.loads(arguments))
    check_is_module(factory, model)
    with Path(place).open("wb") as file:
        for parameter in (p.detach() for p in model.parameters() if p.requires_grad):
            file.write(parameter.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    print()


if __name__ == "__main__":
    answer(_main, *sys.argv[1:])
