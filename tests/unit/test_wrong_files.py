"""A file or folder that is not what a command takes: said as that, with what to name instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_cli import flowcheck

JOB = '[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'


def error_of(*words: str | Path) -> dict[str, Any]:
    code, out, err = flowcheck(*words, "--json")
    assert (code, out) == (2, ""), err
    told: dict[str, Any] = json.loads(err)
    return told


@pytest.mark.parametrize("verb", ["up", "ports"])
def test_a_folder_is_told_as_that_with_the_files_in_it(verb: str, tmp_path: Path) -> None:
    assert error_of(verb, tmp_path)["finding"]["arguments"]["right"]["code"] == (
        "text_file.is_folder"
    )
    (tmp_path / "a.toml").write_text(JOB)
    told = error_of(verb, tmp_path)
    assert str(tmp_path / "a.toml") in told["remedy"]


def test_ports_knows_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    told = error_of("ports", tmp_path / "job.toml")
    right = told["finding"]["arguments"]["right"]
    assert right["code"] == "layout.is_job_file"
    assert right["arguments"]["tables"] == ["[source]", "[optimizer]"]
    assert "[traffic]" in told["remedy"]


def test_up_knows_a_layout(tmp_path: Path) -> None:
    layout = tmp_path / "a layout.toml"
    layout.write_text('nodes = 2\n[[cable]]\nswitch = "leaf0"\n[[monitor]]\nport = "x"\n')
    told = error_of("up", layout)
    right = told["finding"]["arguments"]["right"]
    assert right["code"] == "setting.is_layout_file"
    assert right["arguments"]["tables"] == ["[[cable]]", "[[monitor]]"]
    assert f"`flowcheck ports '{layout}'`" in told["remedy"]


def test_a_misspelt_table_of_a_layout_is_told_before_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "layout.toml").write_text("[[cabel]]\n")
    told = error_of("ports", tmp_path / "layout.toml")["finding"]["arguments"]
    assert (told["key"], told["right"]["arguments"]["hint"]["arguments"]["key"]) == (
        "cabel",
        "cable",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--run", "NONE"),
        ("top", "--run", "NONE"),
        ("stage", "parse", "--run", "NONE"),
        ("plan", "torch.nn:Linear", "--set", "in_features=8", "--world", "0"),
    ],
)
def test_what_stops_a_new_user_says_what_to_do(words: tuple[str, ...], tmp_path: Path) -> None:
    told = error_of(*(word.replace("NONE", str(tmp_path / "none")) for word in words))
    assert len(told["remedy"]) > 20
