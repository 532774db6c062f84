"""Errors about a job file name the file and the line; judged by the text that the test wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import flowcheck

from flowcheck.config import load_job
from flowcheck.config.setting_line import line_of_key
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.general_errors import AT_LINE, IN_FILE

HEAD = """# job
run = "/run/x"

[[source]]
file = "a.pcap"
[[source]]
file = "b.pcap"
speed = {speed}

[optimizer]
name = "{name}"   # speed = 1
learning_rate = {rate}
"""


def head(speed: str = "1.0", name: str = "sgd", rate: str = "0.1") -> str:
    return HEAD.format(speed=speed, name=name, rate=rate)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        (head(rate="-1.0"), "optimizer.learning_rate", 12),
        (head(rate="'x'"), "optimizer.learning_rate", 12),
        (head(speed="-2.0"), "source.speed", 8),
        (head(speed="'x'"), "source[1].speed", 8),
        (head() + "lr = 1\n", "optimizer.lr", 13),
        (head().replace("learning_rate = 0.1\n", ""), "optimizer.learning_rate", 10),
        (head() + '[model]\nnames = [\n  "speed = 1",\n  "[ring]",\n]\n[ring]\nslots = 3\n',
         "ring.slots", 19),
        (head() + "[optimizer.scaler]\ninit_scale = 1.0\ngrowth_factor = 0.5\n",
         "optimizer.scaler.growth_factor", 15),
        (head() + "ring = 3\n", "optimizer.ring", 13),
        ("ring = { slots = 3 }\n" + head(), "ring.slots", 1),
        ("ring.slots = 3\n" + head(), "ring.slots", 1),
        ('"ring" . "slots" = 3\n' + head(), "ring.slots", 1),
        ('title = """\nring.slots = 3\n"""\n' + head(), "title", 1),
        (head().replace("\n", "\r\n").replace("0.1", "-0.1"), "optimizer.learning_rate", 12),
    ],
)  # fmt: skip
def test_a_refused_key_is_told_with_its_line(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(text, newline="")
    with pytest.raises(ConfigError) as refused:
        load_job(job)
    assert refused.value.key == key
    assert refused.value.finding.arguments["place"] == AT_LINE(file=job, line=line)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[[source]]\nfile = "x"\n', "optimizer"),
        ("", "source"),
        (head(speed="-1.0").replace('file = "a.pcap"', 'file = "a.pcap"\nspeed = -1.0'),
         "source.speed"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_told_is_left_out(tmp_path: Path, text: str, key: str) -> None:
    """Nothing of it is in the file, or two tables state the same wrong value."""
    job = tmp_path / "job.toml"
    job.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_job(job)
    assert refused.value.key == key
    assert refused.value.finding.arguments["place"] == IN_FILE(job)


@given(
    before=st.lists(st.sampled_from(["", "# [b]", "[a]", "k = [", "[[c]]", "t = '''", "'''", "]"])),
    value=st.integers(0, 9),
)
def test_a_line_is_that_of_the_statement_whatever_stands_before(
    before: list[str], value: int
) -> None:
    import tomllib

    text = "\n".join([*before, "[wanted]", f"key = {value}", ""])
    try:
        if tomllib.loads(text).get("wanted") != {"key": value}:
            return
    except tomllib.TOMLDecodeError:
        return
    assert line_of_key(text, "wanted.key", value) == len(before) + 2
    assert line_of_key(text, "wanted.other", None) == len(before) + 1


def test_what_is_looked_for_later_is_told_with_its_line_too(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(head().replace('file = "a.pcap"', 'interface = "none0"'))
    code, _, err = flowcheck("up", job, "--run", tmp_path / "run", "--json")
    told = json.loads(err.splitlines()[-1])["finding"]["arguments"]
    assert (code, told["key"]) == (2, "source.interface")
    assert told["place"]["arguments"] == {"file": str(job), "line": 5}
    assert told["place"]["code"] == AT_LINE.code
