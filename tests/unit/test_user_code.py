"""A user's own files, loaded as they are: training scripts, not modules made for us."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.privileges import READS_ONLY, USER_CODE_REFUSED
from flowcheck.ops.planning.meta_device_model import load_model
from flowcheck.replica.user_code import (
    FORBIDDEN,
    MODULE,
    callable_at,
    file_module,
    user_code_forbidden,
)
from flowcheck.stages.privilege import drop_privileges

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


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("train.py", 'write "file.py:function"'),
        ("gone.py:make", "there is no file"),
        ("train.py:WIDTH", "is not a function"),
        ("train.py:no_such", "train.py has no no_such; it has make, other"),
        ("alone.py:make", "alone.py has no make; it has no function"),
        ("lost.py:make", "cannot import name 'gone' from 'lost'"),
        ("program.py:make", "ended with 3 when it was imported"),
        ("no_such_package.module:make", "No module named 'no_such_package'"),
    ],
)
def test_what_is_named_and_is_no_function_is_said_with_its_key(
    where: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "WIDTH = 5\ndef make(): pass\ndef other(): pass\n"
    (tmp_path / "train.py").write_text(made)
    (tmp_path / "alone.py").write_text("from os.path import join\n")
    (tmp_path / "lost.py").write_text(f"import sys\nfrom {MODULE}lost import gone\n")
    (tmp_path / "program.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(why)) as raised:
        callable_at("optimizer.schedule", where)
    assert str(raised.value).startswith(f"optimizer.schedule = {where!r}: ")


def test_a_package_is_looked_up_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "rates.py").write_text("def warm(): return lambda step: 0.5\n")
    monkeypatch.chdir(tmp_path)
    assert callable_at("optimizer.schedule", "package_of_mine.rates:warm")()(3) == 0.5


def test_code_is_refused_with_the_finding_that_a_process_or_a_caller_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("def make(): pass\n")
    where, why = f"{tmp_path / 'train.py'}:make", USER_CODE_REFUSED(READS_ONLY())
    with user_code_forbidden(why), pytest.raises(ConfigError) as refused:
        callable_at("model.factory", where)
    assert refused.value.right == why
    assert callable_at("model.factory", where)() is None
    monkeypatch.setenv(FORBIDDEN, "")  # taken away behind the test
    monkeypatch.setattr(drop_privileges, "_nothing_to_do", lambda: False)
    drop_privileges.forbid_user_code(READS_ONLY())
    with pytest.raises(ConfigError) as refused:
        callable_at("model.factory", where)
    assert refused.value.right == why
