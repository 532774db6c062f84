"""A chain is started once, also where its machine's folder was removed while it runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flowcheck.findings.catalog import fleet_running as told
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.ops.fleet.chain_keeping import ChainKeeping
from flowcheck.ops.fleet.node_folder import NodeFolder


def test_what_still_serves_without_its_run_directory_is_not_started_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(ChainKeeping, "_start", lambda own, chain, *_: started.append(chain.name))
    folder = NodeFolder(tmp_path / "f" / "a")
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        run = str(tmp_path / "gone")
        chain = FleetChain(name="x", node="a", of=None, job="", run=run, served=url, copied=None)
        state = FleetState(
            name="f",
            generation=1,
            wanted=True,
            folder="/",
            state=str(tmp_path),
            keepers={},
            chains=(chain,),
        )
        folder.take(state)
        keeping = ChainKeeping(folder, "x")
        why = keeping.look()
        assert why is not None and why.is_any_of(told.HELD_BY_ANOTHER)
        assert why.arguments == {"url": url, "run": run} and not started
    keeping.look()
    assert started == ["x"]
