"""Stage: serves steps over HTTP, from a running chain or from folders alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig, ServeConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.chain_processes import SERVED_AT
from flowcheck.findings.finding import Finding
from flowcheck.messages import Message, Note
from flowcheck.stages.checkpointing.pinned_steps import ReplicaSteps
from flowcheck.stages.job_state.doubts_behind_save import doubts_behind_save, manifest_if_whole
from flowcheck.stages.job_state.exact_states import ExactStates, exact_states
from flowcheck.stages.run_directory.job_run_dirs import job_count, job_folder_name
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing
from flowcheck.vault.persist.noted_doubts import noted_beside
from flowcheck.vault.persist.storage_target import local_path
from flowcheck.vault.serve.step_catalog import StepCatalog
from flowcheck.vault.serve.step_server import StepServer

END_LEASES_S = 5.0
"""Seconds between two looks for leases that ended. A choice: longer keeps read steps for longer."""


def catalogue_of(run: RunDir, config: JobConfig, own: ServeConfig) -> StepCatalog:
    """The steps of a run: checkpoints in its folders, and its replica."""
    folders = []
    if config.persist is not None and config.persist.is_local:
        folders.append(local_path(config.persist.target))
    if config.checkpoint is not None:
        folders.append(Path(config.checkpoint))
    unique: Sequence[Path] = list(dict.fromkeys(folder.resolve() for folder in folders))
    staging = run.root / "serve"
    if own.staging is not None:  # shared with other runs, and other jobs
        staging = run.upload_staging_folder(own.staging).with_suffix(".serve")
    memory, doubts = ReplicaSteps(run, None), partial(_doubts, run)
    exact = partial(_exact, run)
    return StepCatalog(unique, memory, staging, own.staged, doubts, exact)


def _exact(run: RunDir) -> ExactStates:
    with suppress(FlowCheckError):
        return exact_states(run)
    return ExactStates()


def _doubts(run: RunDir, folder: Path, listing: CheckpointListing) -> tuple[Finding, ...]:
    """Of a checkpoint that the run saved, and by the ledger beside it, as another run may have;
    nothing of the run where its files cannot be read."""
    found: tuple[Finding, ...] = ()
    with suppress(FlowCheckError, OSError):
        manifest = partial(manifest_if_whole, folder)
        found = doubts_behind_save(run, listing.step, listing.digest, manifest)
    return tuple(dict.fromkeys((*found, *noted_beside(folder, listing.digest))))


def catalogues_of(
    run: RunDir, config: JobConfig, own: ServeConfig
) -> StepCatalog | dict[str, StepCatalog]:
    """{job name: its steps}, for a chain that follows several jobs."""
    if not config.several or run.port is not run:
        return catalogue_of(run, config, own)
    named = {
        job_folder_name(config, n): run.job_run_dir(n) for n in range(1, job_count(config) + 1)
    }
    return {name: catalogue_of(each, each.settings(), own) for name, each in named.items()}


class ServeService:
    """A server in threads beside the stage's loop."""

    name = "serve"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.serve is not None, "the stage is started where it is stated"
        self._run, self._config, self._own = run, config, config.serve
        self._server: StepServer | None = None
        self._looked_s = 0.0

    def start(self, links: StageSockets) -> None:
        catalogue = catalogues_of(self._run, self._config, self._own)
        self._server = StepServer(catalogue, self._own, print)
        self._server.start()
        told = msgspec.json.encode({"url": self._server.url})
        write_atomically(self._run.served, told, durable=False)
        links.report(Note(stage=self.name, finding=SERVED_AT(self._server.url)))

    def work(self) -> int:
        now = time.monotonic()
        if self._server is not None and now - self._looked_s > END_LEASES_S:
            self._looked_s = now
            self._server.end_leases()
        return 0

    def on_message(self, message: Message) -> None:
        """Nothing is waited for."""

    def drained(self) -> bool:
        return True

    def stop(self) -> None:
        with suppress(OSError):
            self._run.served.unlink(missing_ok=True)
        if self._server is not None:
            self._server.stop()
