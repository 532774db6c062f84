"""The jobs that one chain follows: how many, where each is, and what it is called."""

from __future__ import annotations

from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError
from flowcheck.stages.rundir import RunDir


def count(config: JobConfig) -> int:
    """Jobs that are followed."""
    return max(config.jobs, len(config.job))


def every(run: RunDir) -> list[RunDir]:
    """The run directories of all jobs that the chain in `run` follows, the first one's first."""
    if not run.config.exists() or run.port is not run:
        return [run]
    return [run.beside(number) for number in range(1, count(run.settings()) + 1)]


def folder_of(config: JobConfig, number: int) -> str:
    """What the folder of a job's checkpoints is called where there are several."""
    name = config.job[number - 1].name if len(config.job) >= number else None
    return name or f"job-{number}"


def names(root: Path) -> list[str]:
    """Of the jobs that the chain in a run directory follows; one of one."""
    run = RunDir(root)
    config = run.settings() if run.config.exists() else None
    if config is None or run.port is not run:
        return ["job-1"]
    return [folder_of(config, number) for number in range(1, count(config) + 1)]


def run_of(root: Path, job: str) -> Path:
    """The run directory of one of several jobs, by its number from 1 or its name. Raises
    ConfigError."""
    known = names(root)
    if job in known:
        number = known.index(job) + 1
    elif job.isascii() and job.isdigit() and 0 < int(job[:9]) <= len(known):
        number = int(job)
    else:
        raise ConfigError("--job", job, f"is one of {', '.join(known)}, or its number from 1")
    return root if number == 1 else RunDir(root).beside(number).root
