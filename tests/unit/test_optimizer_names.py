"""A class of torch.optim is the same optimizer in any case of its letters."""

from __future__ import annotations

import msgspec
import pytest

from flowcheck.config import OptimizerConfig, OptimizerPartConfig
from flowcheck.replica.optimizer.state_section_names import fingerprint


@pytest.mark.parametrize("name", ["AdamW", "ADAMW", "adamw"])
def test_a_name_is_one_name_however_it_is_written(name: str) -> None:
    plain = OptimizerConfig(name="adamw", learning_rate=0.1)
    told = msgspec.json.encode(plain).replace(b'"adamw"', f'"{name}"'.encode())
    decoded = msgspec.json.decode(told, type=OptimizerConfig)
    made = OptimizerConfig(name=name, learning_rate=0.1)
    for other in (decoded, made, msgspec.structs.replace(plain, name=name)):
        assert other == plain
        assert fingerprint(other) == fingerprint(plain)
    each = OptimizerPartConfig(name=name, learning_rate=0.1, parameters="rest")
    several = OptimizerConfig(each=(each,))
    assert several.per_optimizer[0].name == several.each[0].name == "adamw"
