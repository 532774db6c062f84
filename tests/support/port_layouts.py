"""Layouts of machines and switches for the choice of ports, written as a user writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan, PortsRequest, make_mirror_plan

DATA = Path(__file__).resolve().parents[1] / "data" / "ports"
SIXTEEN = DATA / "sixteen-nodes.toml"
Tree = dict[str, Any]


def layout(nodes: int = 4, monitors: tuple[float, ...] = (200.0,), **more: object) -> Tree:
    """A GPU and a NIC a node, all on one switch."""
    return {
        "nodes": nodes,
        "gpus": 1,
        "cable": [{"nic": 0, "switch": "leaf", "ports": f"Ethernet{{1-{nodes}}}", "gbps": 100}],
        "monitor": [
            {"switch": "leaf", "port": f"Ethernet{60 + n}", "gbps": gbps}
            for n, gbps in enumerate(monitors)
        ],
        **more,
    }


def toml(value: object) -> str:
    """JSON's words are TOML's, but for tables inside lists."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def choose(folder: Path, tree: Tree, **asked: Any) -> MirrorPlan:
    file = folder / "layout.toml"
    file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in tree.items()))
    return make_mirror_plan(PortsRequest(file=file, **asked))


def words(chosen: MirrorPlan) -> list[str]:
    return [f"{pair.port}:{pair.direction}" for pair, _ in chosen.choice.placed]


def shown(chosen: MirrorPlan, port: str) -> set[int]:
    """Chunks of the first ring that pass a port:direction."""
    want = chosen.coverage_problem.goals[0]
    tap = next(
        tap
        for tap in chosen.coverage_problem.taps
        if any(f"{pair.port}:{pair.direction}" == port for pair in tap.pairs)
    )
    bits = tap.shows[want.name]
    return {c for n, some in enumerate(want.chunks) if bits >> n & 1 for c in some}
