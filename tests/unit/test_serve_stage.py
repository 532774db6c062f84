"""A chain's own server: steps that lie in memory alone, while the replica goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from support.persisting import replica_of, run_with_replica, take

from flowcheck.ops.watch.state import checkpoint_status
from flowcheck.vault.download.checkpoint_download import download_step

WORD = "a word of many letters"


@pytest.mark.nightly
def test_a_step_of_the_memory_is_fetched_while_the_replica_takes_more(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    (tmp_path / "word").write_text(WORD)
    stated = f'[serve]\nport = 0\ntoken_file = "{tmp_path}/word"\n'
    run = run_with_replica(tmp_path / "run", tmp_path, stated, 200_000)
    replica = replica_of(run)
    take(replica, 2)
    second = replica.parameters().copy()
    command = [sys.executable, "-m", "flowcheck", "stage", "serve", "--run", str(run.root)]
    with run.log("serve").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(1200):
            if (url := checkpoint_status.serve_url(run)) is not None:
                break
            Event().wait(0.05)
        assert url is not None
        got = download_step(url, "latest", tmp_path / "got", WORD)
        take(replica, 5)
        assert got.name == "step-2"
        held = load_file(got / "model.safetensors")
        assert np.array_equal(held["param.0"], second)
        later = download_step(url, "latest", tmp_path / "got", WORD)
        assert later.name == "step-7"
        manifest = json.loads((later / "manifest.json").read_bytes())
        assert manifest["digest"] == replica.digest
        process.terminate()
        assert process.wait(60) == 0
        assert checkpoint_status.serve_url(run) is None
    finally:
        process.kill()
        process.wait()
        replica.close()
        run.remove()
