"""A run of the lab takes away what a crash left, and never the cluster of a run that goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import CLUSTER_IN_USE
from flowcheck.lab import cluster
from flowcheck.lab.cli import app
from flowcheck.lab.cluster import cluster_setup, cluster_state_file
from flowcheck.lab.cluster.cluster_ownership import reserved

HOLDS = """
import sys
from flowcheck.lab.cluster.cluster_ownership import reserved
with reserved(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("verb", ["train", "record"])
def test_the_cluster_of_a_run_that_goes_on_is_not_taken_down_until_that_is_killed(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"h{os.getpid() % 10**6}{verb[0]}"
    taken: list[str] = []

    def down(name: str) -> None:
        taken.append(name)
        raise FlowCheckError("far enough")

    monkeypatch.setattr(cluster, "down", down)
    words = [verb, "--name", name, "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", HOLDS, name]
    with subprocess.Popen(command, stdin=-1, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for _ in range(2):
            error = CliRunner().invoke(app, words).exception
            assert isinstance(error, FlowCheckError), error
            assert error.finding == CLUSTER_IN_USE(name=name, owner=f"process {other.pid}")
        assert not taken
        assert not list(tmp_path.iterdir()), "nothing is made"
        other.kill()
    assert "far enough" in str(CliRunner().invoke(app, words).exception)
    assert taken == [name]
    with (
        reserved(name),
        refused_as(CLUSTER_IN_USE, kind=FlowCheckError, owner=f"process {os.getpid()}"),
        reserved(name),
    ):
        raise AssertionError("held twice")


def test_who_asks_for_another_name_is_told_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lab"
    monkeypatch.setattr(cluster_state_file, "FOLDER", folder)
    monkeypatch.setattr(cluster_setup, "require_root", lambda: None)
    made = cluster.Cluster(name="train", mirrors=cluster.parse_mirrors(["p0:rx"]))
    asked = (("down", 0, "nothing to remove"), ("status", 1, "down"))
    for told in ("", "; of other names there are train (--name)"):
        for verb, code, said in asked:
            ended = CliRunner().invoke(app, [verb, "--name", "lab0"])
            assert (ended.exit_code, ended.output) == (code, f"cluster lab0: {said}{told}\n")
        folder.mkdir(exist_ok=True)
        cluster_state_file.save(cluster_state_file.ClusterState(cluster=made))
