"""What the page says of findings, by its own script without a browser: the tree that it would draw,
as text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flowcheck.ops.watch.page import SCRIPTS
from flowcheck.ops.watch.state.chain_state import VERSION

NODE = shutil.which("node")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "flowcheck/ops/watch/page"
STUBS = """
const nothing = () => null;
const location = { origin: "http://x", pathname: "/", hash: "", replace: nothing };
const document = { getElementById: nothing, addEventListener: nothing };
const addEventListener = nothing, requestAnimationFrame = nothing, matchMedia = () => ({});
const fetch = () => new Promise(nothing);
"""
SAY = """
const text = (node) => (typeof node === "string" ? [node] : node.children.flatMap(text));
let refused = "";
try { take(STATE, NaN); } catch (error) { refused = error.message; }
console.log(JSON.stringify({ refused, said: [page(viewOf())].flat().flatMap(text) }));
process.exit(0);
"""


def drawn(state: dict[str, Any]) -> dict[str, Any]:
    """{"refused", "said"} of a state; said: the texts of the page, in order."""
    script = "".join((PAGE / name).read_text("utf-8") for name in SCRIPTS)
    source = f"{STUBS}const STATE_TEXT = {json.dumps(json.dumps(state))};\n{script}{SAY}"
    source = source.replace("take(STATE,", "take(JSON.parse(STATE_TEXT),")
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-"], input=source, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(NODE is None, reason="no node: apt-get install nodejs")
def test_a_finding_is_shown_by_its_sentence_and_a_string_as_it_is() -> None:
    state = json.loads((ROOT / "tests/data/watch/state-lost.json").read_text())
    job = state["jobs"][0]
    because = {"code": "a.b", "arguments": {"n": 1}, "until_audit": False, "sentence": "because 1"}
    job["why_not"], job["tainted"] = [because, "a string"], [because | {"sentence": ""}]
    state["problems"] = [because | {"sentence": "not read"}]
    told = drawn(state)
    said = told["said"]
    assert told["refused"] == "" and not [one for one in said if "[object" in one]
    assert {"because 1", "a string", "not read", "a.b"} <= set(said)
    assert state["health"]["reason"]["sentence"] in said
    for event in state["events"]:
        sentence = event.get("why", {}).get("sentence") or event.get("name") or event.get("path")
        first = (sentence or "").split("/")[-1]
        assert any(first in one for one in said), event


@pytest.mark.skipif(NODE is None, reason="no node: apt-get install nodejs")
def test_a_state_of_another_version_is_refused_and_said() -> None:
    state = json.loads((ROOT / "tests/data/watch/state.json").read_text())
    assert state["version"] == VERSION
    told = drawn(state | {"version": VERSION - 1})
    assert f"of another version ({VERSION - 1})" in told["refused"]
