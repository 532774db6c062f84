"""What a collective is to its trainer: the codes of `analyze --json` are those of `plan --json`."""

from __future__ import annotations

from pathlib import Path

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.ops.analysis.analyze_command import as_dict
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

PLANNED = {
    *("parameter_count", "parameter_shapes", "initial_weights", "buffers"),
    *("bucket_order", "bucket_sizes", "bucket", "used_parameters"),
}
"""The codes that `flowcheck plan` has."""


def test_a_job_is_read_in_the_roles_that_a_plan_has(tmp_path: Path) -> None:
    job = SyntheticJob(shapes=((120, 100), (500,)), steps=3, seed=3)
    write_pcap(tmp_path / "job.pcap", make_traffic(job).frames_at_port(0))
    tape = read_capture_files([tmp_path / "job.pcap"])
    found = as_dict({}, read_stream(tape.flows, tape.messages))["collectives"]
    assert [(one["role"], one["meaning"]) for one in found[:3]] == [
        ("parameter_count", "parameter count"),
        ("parameter_shapes", "parameter shapes"),
        ("initial_weights", "initial weights"),
    ]
    roles = [one["role"] for one in found]
    assert roles.count("bucket") >= job.steps
    assert {"bucket_order", "bucket_sizes"} <= set(roles) <= PLANNED
