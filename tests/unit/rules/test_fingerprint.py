"""What a replica was made with is told by 16 bytes."""

from __future__ import annotations

import itertools

from flowcheck.config import GroupConfig, OptimizerConfig, OptimizerPartConfig
from flowcheck.config.optimizer_config import AverageConfig, ScalerConfig, ShardedGroup
from flowcheck.replica.optimizer.state_section_names import fingerprint


def test_the_fingerprint_changes_with_every_setting() -> None:
    changes = {
        "name": ["adam"],
        "implementation": ["loop", "foreach", "fused"],
        "device": ["cuda"],
        "torch": ["2.10.0"],
        "learning_rate": [0.2],
        "momentum": [0.5],
        "dampening": [0.5],
        "nesterov": [True],
        "betas": [(0.9, 0.99)],
        "eps": [1e-7],
        "weight_decay": [0.0],
        "amsgrad": [True],
        "maximize": [True],
        "schedule": ["job.py:schedule"],
        "schedule_arguments": [{"warmup": 3}],
        "clip_norm": [1.0],
        "clip_threads": [2],
        "clip_alone": [True],
        "clip_together": [True],
        "takes_frozen": [True],
        "clip_order": [(2, 1)],
        "clip_wait_s": [5.0],
        "synced_backwards": [2],
        "gradient_divisor": [2.0],
        "sharded_groups": [(ShardedGroup(ranks=2, part_elements=4, starts=((0, 0),)),)],
        "factory": ["train.py:optimizer"],
        "factory_arguments": [{"rate": 0.1}],
        "arguments": [{"alpha": 0.9}],
        "groups": [(GroupConfig(parameters=("*.bias",), weight_decay=0.0),)],
        "each": [
            (OptimizerPartConfig(name="muon", parameters="rest", learning_rate=rate),)
            for rate in (0.1, 0.2)
        ],
        "schedule_every": [2],
        "schedule_when_skipped": [False],
        "clip_norm_type": [1.0],
        "clip_error_if_nonfinite": [True],
        "clip_foreach": [False],
        "clip_value": [1.0],
        "clip_value_first": [True],
        "threads": [2],
        "master_dtype": ["float32"],
        "rounding": ["train.py:rounded"],
        "scaler": [ScalerConfig(), ScalerConfig(init_scale=2.0)],
        "average": [AverageConfig(), AverageConfig(decay=0.9)],
    }
    base = {"name": "sgd", "learning_rate": 0.1}
    configs = [OptimizerConfig(**base)]
    configs += [
        OptimizerConfig(**(base | {key: value}))
        for key, values in changes.items()
        for value in values
    ]
    assert set(changes) == set(OptimizerConfig.__struct_fields__)
    prints = [fingerprint(config) for config in configs]
    assert all(a != b for a, b in itertools.combinations(prints, 2))
    assert fingerprint(OptimizerConfig(**base)) == prints[0]


def test_a_setting_that_is_as_by_default_changes_nothing() -> None:
    """So that a kind of setting that comes later is none to a replica that is there already."""
    plain = OptimizerConfig(name="sgd", learning_rate=0.1)
    said = OptimizerConfig(name="sgd", learning_rate=0.1, threads=1, groups=(), factory=None)
    assert fingerprint(plain) == fingerprint(said)
