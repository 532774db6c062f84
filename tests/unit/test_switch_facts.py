"""From sixteen nodes to lines to paste, for each vendor, against the page of facts about switches,
which was written from the vendors' manuals before there was a template."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from support.real_captures import captures_folder

from flowcheck.ops.switch import switch_platforms
from tests.unit.test_cli import flowcheck
from tests.unit.test_switch_render import port

FOLDER = captures_folder()
PAGE = FOLDER / "facts" / "switches.md" if FOLDER else None
pytestmark = pytest.mark.skipif(
    PAGE is None or not PAGE.exists(), reason="no facts/switches.md beside the real captures"
)
SECTIONS = {
    "comware": "3.1",
    "cloudengine": "3.2",
    "nxos": "3.3",
    "eos": "3.4",
    "junos": "3.5",
    "cumulus": "3.6",
    "onyx": "3.7",
    "sonic": "3.8",
    "os10": "3.9",
    "rgos": "3.10",
}
"""Its example mirrors what ports 1 and 2 receive to port 32: what is chosen of a ring whose nodes
are on ports 1 to 16. Open vSwitch and tc are tried for real instead."""


def of_page(os: str) -> list[str]:
    """Lines of the first listing of a system's section."""
    assert PAGE is not None
    pattern = rf"### {re.escape(SECTIONS[os])} .*?\n(.*?)(?=\n### |\n## )"
    section = re.search(pattern, PAGE.read_text(), re.DOTALL)
    assert section is not None
    return plain(re.findall(r"```\w*\n(.*?)```", section.group(1), re.DOTALL)[0])


def plain(text: str) -> list[str]:
    """Without indents and what the page remarks behind a line."""
    lines = (re.sub(r"\s+", " ", re.sub(r"\s+[#!].*$", "", line)) for line in text.splitlines())
    return [line.strip() for line in lines if line.strip()]


@pytest.mark.parametrize("os", SECTIONS)
def test_what_is_chosen_of_sixteen_nodes_is_said_in_the_pages_own_lines(
    os: str, tmp_path: Path
) -> None:
    ports = json.dumps([port(os, number) for number in range(1, 17)])
    named = switch_platforms.platform_named(os).identity != "number"
    session = "" if named else ', session = "1"'
    (tmp_path / "layout.toml").write_text(
        f'nodes = 16\ngpus = 1\nchannels = 1\n[[cable]]\nnic = 0\nswitch = "leaf"\ngbps = 100\n'
        f'ports = {ports}\n[[monitor]]\nswitch = "leaf"\ngbps = 400\nport = "{port(os, 32)}"\n'
        f'{session[2:]}\n[[switch]]\nname = "leaf"\nos = "{os}"\n'
    )
    code, out, err = flowcheck("ports", tmp_path / "layout.toml", "--json")
    assert code == 0, err
    (command,) = json.loads(out)["commands"]
    program, *words = shlex.split(command["render"])
    parts = [word for part in ("setup", "check", "save") for word in ("--part", part)]
    code, out, err = flowcheck(*words, *parts)
    assert (program, code) == ("flowcheck", 0), err
    # Junos: the page looks from where it configures (`run show`), ours once that was left.
    printed = plain(out)
    printed += [f"run {line}" for line in printed if os == "junos"]
    asked = of_page(os)
    assert len(asked) >= 2
    assert [line for line in asked if line not in printed] == []
