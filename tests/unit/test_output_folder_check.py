"""A job file that names a file where its chain is to write a folder is refused before it starts."""

from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import FOLDER_IS_FILE
from flowcheck.ops.job_setup.output_folder_check import check_output_folders


@pytest.mark.parametrize("written", ["{0}", "{0}/x/y", "file://{0}"])
@pytest.mark.parametrize("key", ["checkpoint", "persist.target", "serve.staging"])
def test_a_file_in_place_of_a_folder_is_refused(key: str, written: str, tmp_path: Path) -> None:
    file = tmp_path / "job.pcap"
    file.touch()
    job = tmp_path / "job.toml"
    job.write_text(f'{key} = "{written.format(file)}"\n')
    with refused_as(FOLDER_IS_FILE, kind=ConfigError, file=str(file)):
        check_output_folders(job)
    file.unlink()
    check_output_folders(job)
    file.mkdir()
    check_output_folders(job)


def test_what_is_no_folder_of_this_machine_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    job = tmp_path / "job.toml"
    job.write_text(f'run = "{tmp_path}/run"\n[persist]\ntarget = "s3://bucket/x"\n')
    check_output_folders(job)
