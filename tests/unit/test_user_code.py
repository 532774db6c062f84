"""A user's own files, loaded as they are: training scripts, not modules made for us."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowcheck.ops.plan_model import load_model
from flowcheck.replica.user_code import file_module

SCRIPT = """
from __future__ import annotations
import argparse
from dataclasses import dataclass
import torch
import beside_it

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=beside_it.WIDTH)
given = parser.parse_args()

@dataclass
class Sizes:
    width: int = given.width

def make():
    return torch.nn.Linear(Sizes().width, 2)
"""


def test_a_training_script_makes_its_model_whatever_our_own_arguments_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 5\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["flowcheck", "plan", "train.py:make", "--world", "2"])
    path = list(sys.path)
    model = load_model(f"{script}:make", [], dtype=None, loss=None)
    assert [tensor.wire.sizes for tensor in model.tensors] == [(2, 5), (2,)]
    assert sys.argv[1] == "plan" and sys.path == path


def test_a_script_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    path = list(sys.path)
    with pytest.raises(ZeroDivisionError):
        file_module(tmp_path / "broken.py")
    assert "_user_broken" not in sys.modules and sys.path == path
