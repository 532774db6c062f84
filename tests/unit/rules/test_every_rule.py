"""Every class of torch.optim that can be followed, held against torch itself for 200 steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.scripted import Matrices, Mixed, Script, replica_of, same

from flowcheck.config import OptimizerConfig
from flowcheck.replica.model_replica import Replica

STEPS, REOPENED = 200, 90
RULES = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"amsgrad": True},
    "adamw": {},
    "adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1},
    "rmsprop": {"alpha": 0.9, "centered": True, "momentum": 0.5},
    "adadelta": {"rho": 0.8},
    "adamax": {},
    "nadam": {"momentum_decay": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1},
    "radam": {},
    "asgd": {"lambd": 1e-3, "t0": 20},
    "rprop": {"etas": (0.4, 1.3)},
    "adafactor": {"d": 2.0, "weight_decay": 0.01},
    "muon": {"momentum": 0.9, "ns_steps": 3},
}
OWN = ("momentum", "nesterov", "weight_decay", "amsgrad")
"""torch's arguments that have a key of their own."""
CLASSES = {kind.lower(): getattr(torch.optim, kind) for kind in torch.optim.__dir__()}
FUSED = ("sgd", "adam", "adamw", "adagrad")
CASES = [
    (name, how, dtype)
    for name in RULES
    for how in ("loop", "foreach", "fused")
    for dtype in (torch.float32, torch.bfloat16)
    if (how != "fused" or name in FUSED) and (name, how) != ("muon", "foreach")
    # torch's fused momentum of two bytes an element has other bits each time.
    if (name, how, dtype) != ("sgd", "fused", torch.bfloat16)
]
# By day each rule once, with torch's arithmetics and types by turns; all at night.
OF_EACH = [[case for case in CASES if case[0] == name] for name in RULES]
QUICK = [own[turn % len(own)] for turn, own in enumerate(OF_EACH)]
MARKED = [
    pytest.param(
        *case,
        id="-".join((*case[:2], str(case[2]).removeprefix("torch."))),
        marks=() if case in QUICK else pytest.mark.nightly,
    )
    for case in CASES
]


def scripted(name: str, how: str, dtype: torch.dtype) -> tuple[Script, OptimizerConfig]:
    more = dict(RULES[name])
    flags = {} if name == "muon" else {"foreach": how == "foreach"}
    if name in FUSED:
        flags["fused"] = how == "fused"
    kind = Matrices if name == "muon" else Mixed
    script = Script(
        lambda net: CLASSES[name](net.parameters(), lr=0.02, **more, **flags), kind, dtype
    )
    own = {key: more.pop(key) for key in OWN if key in more}
    config = OptimizerConfig(
        name=CLASSES[name].__name__,
        implementation=how,  # type: ignore[arg-type]
        learning_rate=0.02,
        arguments=more,
        **own,  # type: ignore[arg-type]
    )
    return script, config


@pytest.mark.parametrize(("name", "how", "dtype"), MARKED)
def test_two_hundred_steps_have_torchs_bits(
    name: str, how: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    script, config = scripted(name, how, dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        replica = replica_of(script, config, tmp_path / "state")
        same(replica, script)
        for step in range(1, STEPS + 1):
            wire = script.backward()
            before = bytes(bytearray(wire))
            script.step()
            replica.apply(step, wire)
            assert wire == before, "the gradient belongs to its owner"
            if step < 4 or step % 20 == 0:
                same(replica, script)
            if step == REOPENED:
                replica.close()
                replica = Replica.open(tmp_path / "state", config)
        replica.close()
    finally:
        torch.set_num_threads(threads)
