"""Several jobs behind one port, each under its own path, asked by curl and our own client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.fetching import served, sums
from support.refused_as import refused_as
from support.steps import given_of, layout_of, made, trained

from flowcheck.findings.catalog.checkpoint_downloads import NO_SUCH_STEP
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.serve.step_catalog import StepCatalog


def curl(url: str) -> tuple[int, object]:
    command = ["curl", "-s", "-w", "\n%{http_code}", url]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    body, _, code = told.rpartition("\n")
    return int(code), json.loads(body)


def test_each_of_several_jobs_has_its_steps_under_its_name_and_its_number(tmp_path: Path) -> None:
    for name, steps in (("dense", 2), ("other", 3)):
        net, optimizer = made(seed=steps)
        trained(net, optimizer, 1, steps)
        step = given_of(net, optimizer, steps)
        checkpoint_save.save_trainer_state(step, tmp_path / name, layout_of(net))
    jobs = {name: StepCatalog([tmp_path / name]) for name in ("dense", "other")}
    with served(jobs) as url:
        assert curl(f"{url}/jobs") == (200, {"jobs": ["dense", "other"]})
        code, told = curl(f"{url}/steps/latest")
        assert (code, "/jobs/other/steps" in str(told)) == (404, True)
        assert curl(f"{url}/jobs/3/steps")[0] == 404
        got = download_step(f"{url}/jobs/other", "latest", tmp_path / "got")
        assert sums(got) == sums(tmp_path / "other/step-3")
        by_number = download_step(f"{url}/jobs/1", "latest", tmp_path / "again")
        assert sums(by_number) == sums(tmp_path / "dense/step-2")
        with refused_as(NO_SUCH_STEP, step="3", steps=(2,)):
            download_step(f"{url}/jobs/dense", 3, tmp_path / "no")
