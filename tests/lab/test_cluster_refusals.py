"""What the lab refuses, in one sentence and exit code 2; what it says to programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyroute2 import NetlinkError
from support.leftovers import leftovers_of
from support.refused_as import refused_as

from flowcheck import cli
from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.lab_runs import CLUSTER_EXISTS, NOT_A_CLUSTER_STATE
from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster import cluster_state_file, linux_bridge

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]
NAME = f"r{os.getpid()}"


def leftovers() -> dict[str, object]:
    return leftovers_of(NAME)


def test_name_is_taken() -> None:
    lab.up(lab.Cluster(name=NAME))
    try:
        with refused_as(CLUSTER_EXISTS, kind=FlowCheckError, name=NAME):
            lab.up(lab.Cluster(name=NAME, hosts=3))
        assert (lab.status(NAME) or {})["state"] == "up"
    finally:
        lab.down(NAME)


def test_status_names_what_is_missing() -> None:
    cluster = lab.up(lab.Cluster(name=NAME))
    try:
        sw = ["ip", "-n", cluster.switch_namespace, "link"]
        subprocess.run([*sw, "set", "p0", "down"], check=True)
        subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                cluster.switch_namespace,
                "tc",
                "filter",
                "del",
                "dev",
                "p0",
                "ingress",
            ],
            check=True,
        )
        found = lab.status(NAME) or {}
        assert found["state"] == "broken"
        assert set(found["missing"]) == {"port p0 is down", "mirror p0:rx is gone"}
        faults = {one["code"]: one["arguments"] for one in found["faults"]}
        assert faults == {
            "lab.port_down": {"port": "p0"},
            "lab.mirror_gone": {"mirror": "p0:rx"},
        }
    finally:
        lab.down(NAME)


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `flowcheck lab WORDS` says when it refuses."""
    monkeypatch.setattr(sys, "argv", ["flowcheck", "lab", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    _, *advice = captured.err.splitlines()  # the cause, and what to do
    assert len(advice) <= 2 and all(line.startswith("  ") for line in advice)
    return captured.err


def test_refusals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = leftovers()
    name = ("--name", NAME)
    assert "p0:both" in said(monkeypatch, capsys, "up", *name, "--mirror", "0:both")
    assert "p0 to p1" in said(monkeypatch, capsys, "up", *name, "--mirror", "p2:rx")
    assert "--switch ovs" in said(monkeypatch, capsys, "up", *name, "--erspan")
    assert "4200 or 9000" in said(monkeypatch, capsys, "up", *name, "--mtu", "1500")
    assert "lower case" in said(monkeypatch, capsys, "down", "--name", "../etc")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda _: None)
        assert "apt-get install openvswitch-switch" in said(
            patch, capsys, "up", *name, "--switch", "ovs"
        )
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        for verb in ("up", "down", "status"):
            assert "needs root" in said(patch, capsys, verb, *name)
    assert leftovers() == before


def test_missing_kernel_feature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made before the kernel refused is removed again."""
    before = leftovers()

    class Refusing:
        def get_qdiscs(self, **_: int) -> tuple[()]:
            return ()

        def tc(self, *_: object) -> None:
            raise NetlinkError(95)

    mirrors = linux_bridge.add_mirror_filter

    def copy_to(_: object, *words: object) -> None:
        mirrors(Refusing(), *words)  # type: ignore[arg-type]

    monkeypatch.setattr(linux_bridge, "add_mirror_filter", copy_to)
    assert "CONFIG_NET_SCH_INGRESS" in said(monkeypatch, capsys, "up", "--name", NAME)
    assert leftovers() == before


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def told(code: int, *words: str) -> dict[str, object]:
        monkeypatch.setattr(sys, "argv", ["flowcheck", "lab", *words, "--name", NAME, "--json"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert (left.value.code or 0) == code
        answer = json.loads(capsys.readouterr().out)
        assert isinstance(answer, dict)
        return answer

    assert told(1, "status") == {"name": NAME, "state": "down"}
    made = told(0, "up", "--mirror", "p0:tx")
    try:
        assert made["state"] == "up"
        assert made["coverage"]["missing"] == [0]  # type: ignore[index]
        assert told(0, "status") == made
    finally:
        removed = told(0, "down")
    assert len(removed["namespaces"]) == 4  # type: ignore[arg-type]
    assert told(0, "down")["namespaces"] == []


def test_state_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state_file, "FOLDER", tmp_path)
    (tmp_path / "lab.json").write_text("{")
    with refused_as(NOT_A_CLUSTER_STATE, kind=FlowCheckError):
        lab.status("lab")
    with pytest.raises(ConfigError):
        lab.down("no/name")
