"""Memory that a job file needs, compared with what is free: `flowcheck plan job.toml` and the
check before `flowcheck up`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.plan_figures import (
    COPY_OF_STEP,
    GRADIENTS_BEFORE_BASE,
    GRADIENTS_FOR_COPIES,
    GRADIENTS_FOR_FOLDER,
    GRADIENTS_OF_APPLIED_STEPS,
    RINGS_OF_QUEUES,
    STAGING_BELOW_ITERATION,
)
from flowcheck.findings.catalog.refused_commands import FACTORY_FOR_MEMORY
from flowcheck.findings.catalog.starting_a_chain import JOB_TOO_LARGE
from flowcheck.findings.finding import Finding
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.job_file_references import factory_model
from flowcheck.ops.job_setup.multi_job_setup import job_settings
from flowcheck.ops.lifecycle.chain_runner import ordinary_bytes_free, shared_memory_need
from flowcheck.ops.planning.memory_estimate import (
    MemoryEstimate,
    MemoryItem,
    MemoryPart,
    ReplicaMemory,
    memory_json,
    replica_memory,
)
from flowcheck.plane.shared_memory.shared_memory_location import huge_bytes_free
from flowcheck.replica.step_journal.waiting_sizes import waiting_bytes
from flowcheck.stages.replica_copies.change_ring_sizes import ring_bytes
from flowcheck.stages.replica_update.gradient_logs import applied_log_bytes
from flowcheck.stages.run_directory.job_run_dirs import job_count, job_folder_name
from flowcheck.untrusted_text import printable

EXIT_TOO_LITTLE_MEMORY = 1
"""Exit code where the job needs more memory than is free."""


def run(path: Path, *, as_json: bool) -> int:
    """Prints the memory that a job file needs; returns EXIT_TOO_LITTLE_MEMORY if that is more
    than is free, else 0. Raises ConfigError for an invalid job file, or one that states no model
    factory."""
    from flowcheck.ops.console_output import SentenceConsole
    from flowcheck.ops.planning.plan_report import memory_table

    config = load_checked_job(path)
    memory, free_bytes = memory_of_job(config), ordinary_bytes_free()
    short, advice = memory.bytes > free_bytes, _advice(config, memory)
    if as_json:
        told = {
            **msgspec.to_builtins(memory),
            "parts": memory_json(memory.parts),
            "bytes": memory.bytes,
            "free_bytes": free_bytes,
            "bytes_per_parameter": memory.per_parameter,
            "fits": not short,
            "advice": msgspec.to_builtins(advice),
        }
        print(json.dumps(told))
        return EXIT_TOO_LITTLE_MEMORY if short else 0
    out = SentenceConsole(highlight=False, soft_wrap=True)
    out.print(memory_table(memory))
    for one in advice:
        out.print_finding(one)
    verdict = "does NOT fit" if short else "fits"
    sentence = f"{path}: {verdict}: {memory.bytes:,} bytes are needed, {free_bytes:,} are free now"
    out.print(printable(sentence), markup=False)
    return EXIT_TOO_LITTLE_MEMORY if short else 0


def _advice(config: JobConfig, memory: MemoryEstimate) -> list[Finding]:
    """What the job file must state besides."""
    stated, needed = config.staging.size_bytes, memory.staging_bytes
    if stated >= needed:
        return []
    model = config.model.factory or "FACTORY"
    return [STAGING_BELOW_ITERATION(stated=stated, needed=needed, model=model)]


def check_memory_fits(config: JobConfig) -> None:
    """Raises ConfigError with all parts and their sum where a job file needs more memory than is
    free, huge pages included.

    Does nothing where the file does not state the model factory and optimizer of every job. Then
    the updater checks when the job is learned (stages/replica_update/replica_creation.py).
    """
    each = [job_settings(config, number) for number in range(1, job_count(config) + 1)]
    stated = all(own.model.factory is not None and own.optimizer is not None for own in each)
    if not stated or config.sharded is not None:
        return
    try:
        memory = memory_of_job(config)
    except StateError:  # of a type that no replica keeps: what is learned decides
        return
    free_bytes = ordinary_bytes_free() + huge_bytes_free()
    if memory.bytes <= free_bytes:
        return
    account = " + ".join(f"{part.what} {part.bytes:,}" for part in memory.parts if part.bytes)
    right = JOB_TOO_LARGE(account=account, bytes=memory.bytes, free_bytes=free_bytes)
    raise ConfigError("the job's memory", f"{memory.bytes:,} bytes", right)


def memory_of_job(config: JobConfig) -> MemoryEstimate:
    """Memory that all jobs of the file need. Raises ConfigError where a job states no model
    factory or no optimizer."""
    several = job_count(config) > 1
    parts: list[MemoryItem] = []
    numbers = step_bytes = staging = 0
    for number in range(1, job_count(config) + 1):
        own = job_settings(config, number)
        held = _held_of(own)
        name = job_folder_name(config, number) if several else ""
        more = [
            *held.parts,
            *_readers(own, config, held),
            *_log(own),
            *_applied_gradients(own, held),
            *_waiting_gradients(own, held),
            *_copied_changes(own, held),
        ]
        parts += [msgspec.structs.replace(part, job=name) for part in more]
        numbers, step_bytes = numbers + held.parameters, step_bytes + held.step_bytes
        staging += 2 * held.gradient_bytes  # the weights that are broadcast, and one iteration
    rings = RINGS_OF_QUEUES(slots=config.ring.slots, queues=len(config.rings))
    both = MemoryPart.RINGS_AND_STAGING
    parts.append(MemoryItem(part=both, bytes=shared_memory_need(config), why=rings))
    return MemoryEstimate(
        parts=tuple(parts), staging_bytes=staging, parameters=numbers, step_bytes=step_bytes
    )


def _held_of(own: JobConfig) -> ReplicaMemory:
    model = own.model
    if model.factory is None or own.optimizer is None:
        raise ConfigError("model.factory", model.factory, FACTORY_FOR_MEMORY())
    return replica_memory(factory_model(model), own.optimizer, own.replica.keep_bytes)


def _readers(own: JobConfig, config: JobConfig, held: ReplicaMemory) -> list[MemoryItem]:
    """Who copies a step before it is a file: nobody, where there is a step to spare, for then it is
    read in place (replica/checkpoint/step_snapshot.py, `hold_snapshot`)."""
    if held.spare:
        return []
    done = (
        (MemoryPart.SAVED_STEP, "saved", own.persist is not None),
        (MemoryPart.SERVED_STEP, "served", config.serve is not None),
    )
    return [
        MemoryItem(
            part=part,
            bytes=held.step_bytes,
            why=COPY_OF_STEP(done=word, keep_bytes=held.step_bytes),
        )
        for part, word, asked in done
        if asked
    ]


def _log(own: JobConfig) -> list[MemoryItem]:
    if not (own.late_join or own.replica.awaits_base):
        return []
    size = own.gradient_log.memory_bytes
    return [MemoryItem(part=MemoryPart.GRADIENT_LOG, bytes=size, why=GRADIENTS_BEFORE_BASE())]


def _applied_gradients(own: JobConfig, held: ReplicaMemory) -> list[MemoryItem]:
    """Two logs in turn, each reserved in full (stages/replica_update/gradient_logs.py)."""
    steps = own.gradient_log.taken_steps
    if not steps:
        return []
    return [
        MemoryItem(
            part=MemoryPart.APPLIED_GRADIENTS,
            bytes=applied_log_bytes(steps, held.gradient_bytes),
            why=GRADIENTS_OF_APPLIED_STEPS(steps),
        )
    ]


def _copied_changes(own: JobConfig, held: ReplicaMemory) -> list[MemoryItem]:
    if own.copies is None:
        return []
    return [
        MemoryItem(
            part=MemoryPart.COPIED_CHANGES,
            bytes=ring_bytes(held.gradient_bytes, own.copies.memory_bytes),
            why=GRADIENTS_FOR_COPIES(),
        )
    ]


def _waiting_gradients(own: JobConfig, held: ReplicaMemory) -> list[MemoryItem]:
    if own.gradient_log.folder is None:
        return []
    return [
        MemoryItem(
            part=MemoryPart.WAITING_GRADIENTS,
            bytes=waiting_bytes(held.gradient_bytes),
            why=GRADIENTS_FOR_FOLDER(),
        )
    ]
