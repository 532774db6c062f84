"""The run directories, folders and names of the jobs that one chain follows."""

from __future__ import annotations

from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.run_directories import NO_SUCH_JOB
from flowcheck.stages.run_directory.run_dir import RunDir


def job_count(config: JobConfig) -> int:
    """The number of jobs that the chain follows."""
    return max(config.jobs, len(config.job))


def all_run_dirs(run: RunDir) -> list[RunDir]:
    """The run directories of all jobs that the chain in `run` follows, in the order of jobs."""
    if not run.config.exists() or run.port is not run:
        return [run]
    return [run.job_run_dir(number) for number in range(1, job_count(run.settings()) + 1)]


def job_folder_name(config: JobConfig, number: int) -> str:
    """The name of a job's checkpoint folder, for a chain with several jobs. number: from 1."""
    name = config.job[number - 1].name if len(config.job) >= number else None
    return name or f"job-{number}"


def job_names(root: Path) -> list[str]:
    """The names of the jobs that the chain in a run directory follows; one name for a single
    job."""
    run = RunDir(root)
    config = run.settings() if run.config.exists() else None
    if config is None or run.port is not run:
        return ["job-1"]
    return [job_folder_name(config, number) for number in range(1, job_count(config) + 1)]


def job_run_root(root: Path, job: str) -> Path:
    """The run directory of a job. job: its number from 1, or its name. Raises ConfigError if there
    is no such job."""
    known = job_names(root)
    if job in known:
        number = known.index(job) + 1
    elif job.isascii() and job.isdigit() and 0 < int(job[:9]) <= len(known):
        number = int(job)
    else:
        raise ConfigError("--job", job, NO_SUCH_JOB(known))
    return root if number == 1 else RunDir(root).job_run_dir(number).root
