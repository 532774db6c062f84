"""`flowcheck lab cost`: runs one job with and without checkpoints and measures what each costs
its trainers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.lab_runs import MIRRORED_UNEXPECTEDLY
from flowcheck.findings.catalog.refused_lab_options import (
    AT_LEAST_ONE,
    COST_NEEDS_BRIDGE,
    COST_STEPS,
    CPUS_NEEDED,
)
from flowcheck.lab import cluster
from flowcheck.lab.cluster.linux_bridge import remove_mirrors
from flowcheck.lab.job_run.flowcheck_services import FlowCheckServices
from flowcheck.lab.job_run.hang_detection import HangDetector
from flowcheck.lab.job_run.output_folders import check_folders, make_empty_folders
from flowcheck.lab.job_run.run_display import Display
from flowcheck.lab.job_run.run_plan import MASTER_PORT, LabPlan, job_file
from flowcheck.lab.job_run.torchrun_trainers import Trainers, process_tree
from flowcheck.lab.job_run.training_script import checkpoints_by_step
from flowcheck.lab.training_cost.cost_statistics import (
    CASES,
    CaseMeasurement,
    CostCase,
    CpuSample,
    cpu_of_stat,
    cpu_per_step,
)
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.step_numbers import START, Step

LOOK_S = 0.02
"""Seconds between two readings. A choice: a shorter time costs CPU time of the measured machine."""
FOLLOW_LIMIT_S = 60.0
"""Seconds for the replica to apply the last steps after the trainers ended. A choice: a longer
limit delays the error, a shorter one fails on a busy machine."""
TRAINERS_CPU, OTHER_CPU = 0, 1
"""CPU number of the trainers, and of everything else, so that they do not slow each other."""
CHECKPOINTS_KEPT = 2
"""Newest checkpoints that stay; older ones are removed, as a user would. A choice: one may still
be being written, so at least two."""


def measure(plan: LabPlan, *, rounds: int, warm_up: int, display: Display) -> list[CaseMeasurement]:
    """Measures every case once per round, in turn, so that other load on the machine affects all
    of them. warm_up: iterations at the start that do not count. Raises ConfigError for a plan that
    cannot be measured and as `check_folders`, FlowCheckError if a job failed or hung, or another
    run uses the cluster."""
    if plan.cluster.switch != "bridge":
        raise ConfigError("switch", plan.cluster.switch, COST_NEEDS_BRIDGE())
    if plan.steps < warm_up + 2 or warm_up < 1:
        raise ConfigError("steps", plan.steps, COST_STEPS())
    if rounds < 1:
        raise ConfigError("rounds", rounds, AT_LEAST_ONE())
    check_folders(plan.folder, plan.created_folders, force=plan.force)
    found = []
    with cluster.reserved(plan.cluster.name), _on_cpu(OTHER_CPU):
        for number in range(1, rounds + 1):
            for place, case in enumerate(CASES):
                display.print_line(f"round {number} of {rounds}: {case.words}")
                found.append(_one(plan, case, number, place, warm_up, display))
    return found


def _one(
    plan: LabPlan, case: CostCase, number: int, place: int, warm_up: int, display: Display
) -> CaseMeasurement:
    load = os.getloadavg()[0]
    cluster.down(plan.cluster.name)
    again = (number, place) != (1, 0)  # what is there is of the case before
    make_empty_folders(plan.folder, plan.created_folders, force=plan.force or again)
    cluster.up(plan.cluster)
    services = trainers = None
    try:
        if not case.mirror:
            remove_mirrors(plan.cluster)
        if case.follow:
            services = _start_services(plan)
        script = plan.script("job", *case.arguments)
        trainers = Trainers(
            script,
            plan.cluster,
            port=MASTER_PORT + len(CASES) * number + place,
            environment=plan.environment,
            logs=plan.trainers_folder,
            cpus=str(TRAINERS_CPU),
        )
        samples = _watch(plan, trainers, services, display, case)
        seconds = tuple(float(str(line["seconds"])) for line in trainers.lines()[warm_up:])
        trainers_s, services_s = cpu_per_step(samples, warm_up)
        copies = (cluster.status(plan.cluster.name) or {})["monitor"]["frames"]
        if bool(copies) != case.mirror:
            raise FlowCheckError(MIRRORED_UNEXPECTEDLY(case=case.words, frames=copies))
        made = CaseMeasurement(
            number, case.key, seconds, trainers_s, services_s, load, plan.steps, copies
        )
        if services is None:
            return made
        state = services.chain_state()
        behind = None if state is None else plan.steps - _step(state)
        return replace(made, behind=behind, followed=_catch_up(services, Step(plan.steps)))
    finally:
        if trainers is not None:
            trainers.kill()
        if services is not None:
            services.stop()
        cluster.down(plan.cluster.name)
        shutil.rmtree(plan.trainers_folder, ignore_errors=True)


def _watch(
    plan: LabPlan,
    trainers: Trainers,
    services: FlowCheckServices | None,
    display: Display,
    case: CostCase,
) -> list[CpuSample]:
    """CPU time at each new step until the trainers end."""
    samples: list[CpuSample] = []
    moving, seen = HangDetector(case.words, trainers), 0
    serving = process_tree(services.pid) if services is not None else []
    training: list[int] = []
    while not trainers.ended():
        step = trainers.step()
        if step > seen:
            seen = step
            # Always the same processes: without those that ended, time would go backwards.
            training = training or trainers.pids()
            own = _cpu(training)
            if own is not None:
                samples.append(CpuSample(step, own, _cpu(serving) or 0.0))
            _forget(plan.trainers_folder / "job", Step(step - CHECKPOINTS_KEPT))
            display.show(case.words, {"step": step}, None)
        moving.check(step)
        Event().wait(LOOK_S)
    return samples


def _cpu(pids: Sequence[int]) -> float | None:
    """Seconds of all of them; None if one of them has ended: its share is not to be had."""
    try:
        return sum(cpu_of_stat(Path(f"/proc/{pid}/stat").read_text()) for pid in pids)
    except OSError:
        return None


def _forget(folder: Path, newest: Step) -> None:
    """Removes checkpoints of steps up to `newest`."""
    for step, path in checkpoints_by_step(folder).items():
        if step > newest:
            break
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _start_services(plan: LabPlan) -> FlowCheckServices:
    job = plan.services_folder / "job.toml"
    job.write_text(job_file(plan, digests=False))
    enter = cluster.command_prefix_in(plan.cluster.checkpoint_namespace, [plan.trainers_folder])
    services = FlowCheckServices(job, plan.run, plan.services_folder / "up.log", enter=enter)
    try:
        services.wait_listening()
    except BaseException:
        services.stop()
        raise
    return services


def _step(state: ChainState) -> Step:
    """The replica's; 0 before its first."""
    return state.jobs[0].step or START


def _catch_up(services: FlowCheckServices, step: Step) -> Step:
    deadline_s, last = time.monotonic() + FOLLOW_LIMIT_S, START
    while time.monotonic() < deadline_s and services.alive() and last < step:
        Event().wait(0.1)
        state = services.chain_state()
        last = last if state is None else _step(state)
    return last


@contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """This process, and what it starts without saying otherwise, runs on one CPU."""
    before = os.sched_getaffinity(0)
    if not {TRAINERS_CPU, OTHER_CPU} <= before:
        raise ConfigError(
            "cpus", sorted(before), CPUS_NEEDED(trainers=TRAINERS_CPU, others=OTHER_CPU)
        )
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
