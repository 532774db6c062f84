"""What replay takes of a job file that a live chain uses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from flowcheck.findings.catalog.how_chains_end import CAUSE_UNKNOWN, LOST_AND_STAYS
from flowcheck.findings.catalog.starting_a_chain import RUN_NOT_KEPT
from flowcheck.findings.named_run import set_named_run
from flowcheck.messages import StepLost
from flowcheck.ops.lifecycle.replay_command import ReplayRequest, _config
from flowcheck.ops.lifecycle.replay_result import result_without_run
from flowcheck.step_numbers import Step


def test_nothing_is_saved_where_the_job_file_says(tmp_path: Path) -> None:
    """A replay to look at something must not change what a live chain goes on from."""
    job = tmp_path / "job.toml"
    job.write_text(
        f'checkpoint = "{tmp_path}/live"\n[[source]]\ninterface = "eth1"\n'
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n[persist]\n'
        f'target = "{tmp_path}/saved"\nevery_steps = 5\n'
    )
    request = ReplayRequest(files=(tmp_path / "c.pcap",), job=job, source="file")
    config, _ = _config(request, [1])
    assert config.checkpoint is None and config.persist is None and config.serve is None
    assert [one.file for one in config.source] == [str(tmp_path / "c.pcap")]
    assert not (tmp_path / "live").exists()


def test_the_end_of_a_replay_without_run_names_no_folder_that_is_gone() -> None:
    gone = Path("/tmp/flowcheck-replay-x1")
    set_named_run(gone)
    lost = StepLost(step=Step(3), missing=((0, 8),), why=CAUSE_UNKNOWN())
    result = {"steps": 2, "complete_steps": 2, "interrupted": False, "lost": lost, "why": None}
    result |= {"notes": [LOST_AND_STAYS(step=3, replica_step=2)], "beside": []}
    assert str(gone) in msgspec.json.encode(result).decode()
    again = "flowcheck replay /c.pcap --run DIR --out FOLDER"
    told = result_without_run(result, again)
    text = msgspec.json.encode(told).decode()
    assert str(gone) not in text and "flowcheck status --run DIR" in text
    assert told["notes"][-1] == RUN_NOT_KEPT(again)
    assert f"`{again}`" in json.loads(text)["notes"][-1]["remedy"]
    whole = result_without_run(result | {"lost": None, "taint": None}, again)
    assert RUN_NOT_KEPT(again) not in whole["notes"]
