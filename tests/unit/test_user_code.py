"""A user's own files, loaded as they are: training scripts, not modules made for us."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.privileges import READS_ONLY, USER_CODE_REFUSED
from flowcheck.findings.catalog.refused_user_code import (
    ENDED_AT_IMPORT,
    FORM,
    NAME_MISSING,
    NO_FILE,
    NO_FUNCTION,
    NOT_A_PY_FILE,
    NOT_CALLABLE,
    RAISED,
    RAISED_IN_FILE,
)
from flowcheck.ops.planning.meta_device_model import load_model
from flowcheck.replica.user_code import (
    FORBIDDEN,
    MODULE,
    import_file,
    load_callable,
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
        import_file(tmp_path / "broken.py")
    assert "_user_broken" not in sys.modules and sys.path == path


def fails(error: str) -> Wanted:
    """error: as Python says it."""
    return like(RAISED, error=re.compile(error))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("train.py", FORM),
        ("notes.txt:make", NOT_A_PY_FILE("notes.txt")),
        ("./no such.pcap:make", NOT_A_PY_FILE("./no such.pcap")),
        ("gone.py:make", like(NO_FILE, path=re.compile("gone.py"))),
        ("train.py:WIDTH", NOT_CALLABLE),
        ("train.py:no_such", NAME_MISSING("train.py", "no_such", "make, other")),
        (
            "alone.py:make",
            NAME_MISSING("alone.py", "make", NO_FUNCTION()),
        ),
        ("lost.py:make", fails("cannot import name 'gone' from 'lost'")),
        ("program.py:make", like(ENDED_AT_IMPORT, status="3")),
        ("no_such_package.module:make", fails("No module named 'no_such_package'")),
    ],
)
def test_what_is_named_and_is_no_function_is_said_with_its_key(
    where: str, wanted: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "WIDTH = 5\ndef make(): pass\ndef other(): pass\n"
    (tmp_path / "train.py").write_text(made)
    (tmp_path / "notes.txt").write_text("made of notes")
    (tmp_path / "alone.py").write_text("from os.path import join\n")
    (tmp_path / "lost.py").write_text(f"import sys\nfrom {MODULE}lost import gone\n")
    (tmp_path / "program.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    with refused_as(wanted, kind=ConfigError, key="optimizer.schedule", value=repr(where)):
        load_callable("optimizer.schedule", where)


@pytest.mark.parametrize(
    ("body", "line"),
    [("1 / 0\n", 2), ("def make():\n    return deep()\ndef deep():\n    return [][1]\n", 5)],
)
def test_an_error_of_the_script_tells_its_file_and_line(
    tmp_path: Path, body: str, line: int
) -> None:
    script = tmp_path / "net.py"
    script.write_text("import json\n" + body)
    with pytest.raises(ConfigError) as caught:
        load_model(f"{script}:make", [], dtype=None, loss=None)
    place = RAISED_IN_FILE(file=script.resolve(), line=line)
    assert caught.value.right.arguments["place"] == place


def test_an_error_that_no_line_of_the_script_raises_has_no_place(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(:\n")
    with pytest.raises(ConfigError) as caught:
        load_callable("MODEL", f"{tmp_path / 'net.py'}:make")
    assert caught.value.right.arguments["place"] is None
    assert "(net.py, line 1)" in str(caught.value.right.arguments["error"])


def test_a_package_is_looked_up_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_of_mine").mkdir()
    (tmp_path / "package_of_mine" / "rates.py").write_text("def warm(): return lambda step: 0.5\n")
    monkeypatch.chdir(tmp_path)
    assert load_callable("optimizer.schedule", "package_of_mine.rates:warm")()(3) == 0.5


def test_code_is_refused_with_the_finding_that_a_process_or_a_caller_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("def make(): pass\n")
    where, why = f"{tmp_path / 'train.py'}:make", USER_CODE_REFUSED(READS_ONLY())
    with user_code_forbidden(why), pytest.raises(ConfigError) as refused:
        load_callable("model.factory", where)
    assert refused.value.right == why
    assert load_callable("model.factory", where)() is None
    monkeypatch.setenv(FORBIDDEN, "")  # taken away behind the test
    monkeypatch.setattr(drop_privileges, "_nothing_to_do", lambda: False)
    drop_privileges.forbid_user_code(READS_ONLY())
    with pytest.raises(ConfigError) as refused:
        load_callable("model.factory", where)
    assert refused.value.right == why
