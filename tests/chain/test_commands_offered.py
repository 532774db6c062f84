"""What `flowcheck status` offers after a replay's end runs as it is printed, from any folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import preloaded

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "two-ranks-ll.pcapng"


def said(folder: Path, *words: str | Path, code: int = 0) -> str:
    done = preloaded.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # a replay and eight commands, each of which loads torch
def test_the_printed_commands_run(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "a b", tmp_path / "elsewhere"
    here.mkdir(), elsewhere.mkdir()
    words = ("--optimizer", "adamw", "--lr", "1e-3", "--source", "file", "--out", "kept")
    said(here, "replay", CAPTURE, *words, "--run", here / "r")
    text = said(elsewhere, "status", "--run", here / "r", code=1)
    assert text.startswith("ENDED")
    offered = {one.split()[1]: one for one in re.findall(r"`(flowcheck [^`]+)`", text)}
    subprocess.run(_as_here(offered["restore"]), shell=True, cwd=elsewhere, check=True, timeout=300)
    restored = torch.load(elsewhere / "restored.pt", weights_only=True)
    assert restored["model"]
    torch.save(restored, elsewhere / "FILE")  # as the trainer, which writes no manifest
    subprocess.run(_as_here(offered["audit"]), shell=True, cwd=elsewhere, check=True, timeout=300)
    of_other_step = ("audit", elsewhere / "FILE", "--run", here / "r", "--step", "99")
    assert said(elsewhere, *of_other_step, code=2) == ""
    assert said(elsewhere, "base", "FILE", "--run", here / "r", code=2) == ""

    state = json.loads(said(elsewhere, "status", "--run", here / "r", "--json", code=1))
    assert state["health"]["word"] == "ended"
    assert {job["health"]["word"] for job in state["jobs"]} == {"ended"}
    for diagram in (one for job in state["jobs"] for one in job["diagram"]):
        sentences = [fact["sentence"] for fact in diagram["facts"]]
        assert all(map(str.endswith, diagram["summary"], sentences))
        assert len(sentences) == len(diagram["summary"]) > 3
        covers = next(one for one in diagram["facts"] if one["code"] == "communicator.covers")
        assert covers["arguments"]["once_bytes"] <= covers["arguments"]["bytes"]


def _as_here(command: str) -> str:
    """`flowcheck` as this interpreter runs it."""
    assert command.startswith("flowcheck ")
    return f"{sys.executable} -m {command}"
