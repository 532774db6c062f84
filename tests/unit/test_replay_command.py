"""What replay takes of a job file that a live chain uses."""

from __future__ import annotations

from pathlib import Path

from flowcheck.ops.lifecycle.replay_command import ReplayRequest, _config


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
