"""Whatever is wrong with [optimizer] is said before a frame is captured, with its key."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import Wanted, like, refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_validation import validate_optimizer
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.general_errors import SETTING_REFUSED
from flowcheck.findings.catalog.refused_optimizers import (
    BACKOFF_FACTOR,
    CLASSES_LIKE_IT,
    LEARNING_RATE_NEEDED,
    NAMES_NO_PARAMETER,
    NO_CLASS_LIKE_IT,
    STATED_BY_FACTORY,
    TORCH_REFUSES,
    UNKNOWN_CLASS,
)
from flowcheck.findings.catalog.refused_user_code import (
    ENDED_AT_IMPORT,
    ENDED_THE_TRIAL,
    NO_FILE,
    NOT_RETURNED,
    RAISED,
)
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight import factory_preflight
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer

MODEL = """
import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
"""
SCRIPT = """
import torch
{imported}


def optimizer(named, rate=0.1):
    print("the script talks")
    return torch.optim.SGD([p for name, p in named], lr=rate)
"""


def job(folder: Path, optimizer: str) -> Path:
    (folder / "net.py").write_text(MODEL)
    file = folder / "job.toml"
    factory = folder / "net.py"
    file.write_text(
        f'[[source]]\nfile = "x"\n[model]\nfactory = "{factory}:make"\n[optimizer]\n{optimizer}'
    )
    return file


def test_a_job_file_with_groups_masters_and_a_scale_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(imported=""))
    stated = (
        'name = "RMSprop"\nlearning_rate = 0.1\narguments = {{ alpha = 0.9, centered = true }}\n'
        'schedule = "CosineAnnealingLR"\nschedule_arguments = {{ T_max = 100 }}\n{0}'
        '[[optimizer.groups]]\nparameters = ["*.bias", "1.weight"]\nweight_decay = 0.0\n'
        '[[optimizer.groups]]\nparameters = "rest"\nlearning_rate = 0.2\n'
        "[optimizer.scaler]\ninit_scale = 1024.0\n[optimizer.average]\ndecay = 0.9\n"
    )
    config = load_checked_job(job(tmp_path, stated.format("clip_value = 1.0\n")))
    assert config.optimizer is not None and config.optimizer.groups[1].parameters == "rest"
    assert config.optimizer.scaler is not None and config.optimizer.average is not None
    own = load_checked_job(job(tmp_path, f'factory = "{tmp_path}/train.py:optimizer"\n'))
    assert own.optimizer is not None and own.optimizer.name == ""


@pytest.mark.parametrize(
    ("optimizer", "wanted"),
    [
        (
            'name = "lion"\nlearning_rate = 0.1\n',
            like(UNKNOWN_CLASS, key="optimizer.name", value="'lion'", near=NO_CLASS_LIKE_IT()),
        ),
        (
            'name = "adamv"\nlearning_rate = 0.1\n',
            like(UNKNOWN_CLASS, value="'adamv'", near=CLASSES_LIKE_IT(["adam", "adamw"])),
        ),
        (
            'name = "sgd"\n',
            like(LEARNING_RATE_NEEDED, key="optimizer.learning_rate"),
        ),
        (
            'name = "sgd"\nlearning_rate = 0.1\n[optimizer.scaler]\nbackoff_factor = 2.0\n',
            BACKOFF_FACTOR,
        ),
        (
            'name = "sgd"\nlearning_rate = 0.1\n[[optimizer.groups]]\nparameters = ["fc.*"]\n',
            like(
                NAMES_NO_PARAMETER,
                key="optimizer.groups.parameters",
                value="'fc.*'",
            ),
        ),
        (
            'name = "muon"\nlearning_rate = 0.1\n',
            like(TORCH_REFUSES, error=re.compile("Muon only supports 2D")),
        ),
        (
            'factory = "{}/none.py:make"\n',
            like(NO_FILE, path=re.compile(".*none.py")),
        ),
        (
            'factory = "{}/train.py:optimizer"\nlearning_rate = 0.1\n',
            STATED_BY_FACTORY,
        ),
        (
            'factory = "{}/train.py:optimizer"\nfactory_arguments = {{ rate = -1.0 }}\n',
            like(RAISED, error=re.compile("Invalid learning rate")),
        ),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    optimizer: str, wanted: Wanted, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(imported=""))
    with refused_as(wanted, kind=ConfigError) as refused:
        load_checked_job(
            job(tmp_path, optimizer.format(tmp_path) if "{" in optimizer else optimizer)
        )
    assert refused.value.key.startswith("optimizer")


@pytest.mark.parametrize(
    ("imported", "wanted"),
    [
        ("import time; time.sleep(100)", NOT_RETURNED),
        pytest.param("import os; os._exit(3)", ENDED_THE_TRIAL, marks=pytest.mark.nightly),
        pytest.param(
            "raise SystemExit(2)",
            like(ENDED_AT_IMPORT, status="2"),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "torch.zeros(1, device='cuda')",
            like(SETTING_REFUSED, key="optimizer.factory"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_script_that_does_not_come_back_from_its_import_is_refused(
    imported: str, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting.py").write_text(SCRIPT.format(imported=imported))
    monkeypatch.setattr(factory_preflight, "LIMIT_S", 60.0 if "sleep" not in imported else 3.0)
    config = OptimizerConfig(factory=f"{tmp_path}/waiting.py:optimizer")
    with refused_as(wanted, kind=ConfigError):
        factory_preflight.try_factory(config, Layout.of_shapes([(2,)]))
    assert "_user_waiting" not in sys.modules


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.sampled_from(
    [0.0, 0.5, 1.0]
)
STATED = st.fixed_dictionaries(
    {"name": st.sampled_from(["sgd", "adam", "AdamW"]), "learning_rate": NUMBERS},
    optional={
        "momentum": NUMBERS,
        "dampening": NUMBERS,
        "nesterov": st.booleans(),
        "betas": st.tuples(NUMBERS, NUMBERS),
        "eps": NUMBERS,
        "weight_decay": NUMBERS,
        "amsgrad": st.booleans(),
        "maximize": st.booleans(),
    },
)


@given(STATED)
@settings(max_examples=60, deadline=None)
def test_settings_are_refused_exactly_where_torch_refuses_them(stated: dict[str, Any]) -> None:
    """But for numbers that no script has (inf, NaN), and keys that the class does not take."""
    own = {"lr" if key == "learning_rate" else key: v for key, v in stated.items() if key != "name"}
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    kind = kinds[stated["name"].lower()]
    flat = [v for value in own.values() for v in (value if isinstance(value, tuple) else [value])]
    finite = all(math.isfinite(v) for v in flat)
    try:
        kind([torch.zeros(1)], **own)
        fits = finite
    except (TypeError, ValueError):
        fits = False
    config = OptimizerConfig(**stated)
    try:
        validate_optimizer(config)
        check_optimizer(config, Layout.of_shapes([(2, 2)]))
        taken = True
    except ConfigError as error:
        assert error.key.startswith("optimizer")
        taken = False
    # What is false or 0 is as good as not stated where the class has no such key.
    assert taken == fits or (taken and not any(own.get(k) for k in _unknown(kind, own)))


def _unknown(kind: type[torch.optim.Optimizer], own: dict[str, Any]) -> list[str]:
    try:
        kind([torch.zeros(1)], lr=0.1)
    except TypeError:
        return []
    takes = {"SGD": {"momentum", "dampening", "nesterov"}}.get(
        kind.__name__, {"betas", "eps", "amsgrad"}
    )
    return [key for key in own if key not in takes | {"lr", "weight_decay", "maximize"}]
