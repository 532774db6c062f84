"""A chain on a live interface in a namespace, as its user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.veth import Veth

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.stages.run_directory.run_dir import RunDir


def send(cable: Veth, folder: Path, frames: list[WireFrame]) -> None:
    write_pcap(folder / "part.pcap", frames)
    cable.send(folder / "part.pcap")


def start(cable: Veth, folder: Path) -> subprocess.Popen[str]:
    (folder / "job.toml").write_text(
        f'run = "{folder}/run"\ndigests = true\n[[source]]\ninterface = "{cable.tap}"\n'
        "[ring]\nslots = 4096\n[staging]\nsize_bytes = 16_777_216\n"
        '[optimizer]\nname = "adamw"\nlearning_rate = 0.001\n'
    )
    command = ["ip", "netns", "exec", cable.namespace, sys.executable, "-m", "flowcheck", "up"]
    return subprocess.Popen(
        [*command, str(folder / "job.toml"), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def events(run: RunDir, kind: str) -> list[dict[str, object]]:
    lines = run.events.read_text().splitlines() if run.events.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def greetings(run: RunDir, stage: str) -> int:
    """How often `stage` came up."""
    return sum(event["stage"] == stage for event in events(run, "up"))
