"""Plan of a lab run: cluster, NCCL settings, training script, kill step; and the job file made
from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_lab_options import (
    AT_LEAST_ONE,
    KILL_AT,
    KILL_NEEDS_STEPS,
    NCCL_ALGORITHM,
    NCCL_PROTOCOL,
    NCCL_VERSION,
    NVLS_IS_SIMPLE,
    NVLS_NEEDS,
    PROBABILITY,
    SCRIPT_ENDED,
    STEP_OF_RUN,
    WHOLE_NUMBER,
)
from flowcheck.lab.cluster import UPLINK, Cluster
from flowcheck.lab.job_run.hooked_trainers import hook_environment, hook_lines
from flowcheck.lab.job_run.torchrun_trainers import Script
from flowcheck.lab.roce_backend import trainer_environment
from flowcheck.lab.roce_backend.rank_places import nvls_needs
from flowcheck.lab.roce_backend.trainer_environment import ALL_BYTES, MOST_CHANNELS, VERSIONS
from flowcheck.replica.user_code import import_file
from flowcheck.step_numbers import Step

GPT = Path(__file__).parents[1] / "jobs" / "gpt.py"
MASTER_PORT = 29500
"""TCP port of torchrun's rendezvous, also its default (torch/distributed/run.py)."""
READ_BY_TRAINERS = {
    "protocol": "NCCL_PROTO",
    "algo": "NCCL_ALGO",
    "tree-below": "FLOWCHECK_LAB_TREE_BELOW",
    "nvls-from": "FLOWCHECK_LAB_NVLS_FROM",
    "channels": "NCCL_MAX_NCHANNELS",
    "nccl": "FLOWCHECK_LAB_NCCL",
    "loss": "FLOWCHECK_LAB_LOSS",
}
"""Lab option -> environment variable from which a trainer reads it."""
TRAINER_TAKES = {
    "protocol": NCCL_PROTOCOL(),
    "algo": NCCL_ALGORITHM(),
    "tree-below": WHOLE_NUMBER(least=0, most=ALL_BYTES),
    "nvls-from": WHOLE_NUMBER(least=0, most=ALL_BYTES),
    "channels": WHOLE_NUMBER(least=1, most=MOST_CHANNELS),
    "nccl": NCCL_VERSION(least=VERSIONS[0], most=VERSIONS[-1]),
    "loss": PROBABILITY(),
}
"""Lab option -> finding with the accepted values. A trainer cannot create findings: it imports
nothing of FlowCheck but the emulated NIC."""
RING_SLOTS = 1 << 17
"""Slots of a ring: six seconds of two hosts' traffic. On one CPU core, learning the job delays the
other stages."""
STAGING_BYTES = 3 << 30  # of all jobs
"""Bytes of staging: start-up and first iterations of the largest job that trains here within
minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJoin:
    """When FlowCheck is absent during a run."""

    join_at: Step | None = None
    """Step at which FlowCheck starts, or starts again; None: it never starts later."""
    leave_at: Step | None = None
    """Step at which FlowCheck stops, after it was there from the beginning; None: it does not."""
    gap_at: Step | None = None
    """Step at which its capture is stopped for some seconds; None: it is not."""
    save_every: int = 5
    """Steps between the trainer's own checkpoints."""

    @property
    def comes_new(self) -> bool:
        """Whether FlowCheck sees nothing of the job before `join_at`, so that its model must be
        stated."""
        return self.join_at is not None and self.leave_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """One lab run. Construction raises ConfigError for a plan that cannot run."""

    cluster: Cluster
    folder: Path
    """Folder for everything that the run writes."""
    steps: int
    kill_at: Step | None
    """Step after which all trainers are killed; None: they are not."""
    arguments: tuple[str, ...]
    """Arguments that the user gave to the training script."""
    protocol: str | None = None
    algo: str | None = None
    """NCCL_ALGO; None: ring."""
    tree_below: int | None = None
    """Bytes below which all-reduces use trees; None: by `algo`."""
    nvls_from: int | None = None
    """Bytes from which on all-reduces use NVLS trees; None: by `algo`."""
    channels: int = 2
    nccl: str = "2.29"
    loss: float = 0.0
    mirror_loss: float = 0.0
    """Probability that a copy is dropped at the monitor port, 0 to less than 1."""
    mirror_loss_seed: int = 1
    mirror_loss_from: Step | None = None
    """Step of the trainers behind which copies are dropped; None: from the start on."""
    save_every: int | None = None
    """Steps between the trainer's own saves into `saves_folder`, which the chain watches; None: it
    makes none, and nothing is watched."""
    hook: bool = False
    """True: the trainers run with the hook, and the chain asks it."""
    late_join: LateJoin | None = None
    """When FlowCheck is absent; None: never."""
    jobs: int = 1
    """Number of jobs at the same time, each on the same number of hosts."""
    force: bool = False
    """True: results of an earlier lab run in the folder may be removed."""
    control: bool = True
    """True: also do the control runs without FlowCheck, which end with the trainer's own
    checkpoint and resume from it."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError("steps", self.steps, AT_LEAST_ONE())
        if self.kill_at is not None and self.steps < 2:
            raise ConfigError("steps", self.steps, KILL_NEEDS_STEPS())
        if self.kill_at is not None and not 1 <= self.kill_at < self.steps:
            right = KILL_AT(most=self.steps - 1, steps=self.steps)
            raise ConfigError("kill-at", self.kill_at, right)
        if not 0 <= self.mirror_loss < 1:
            raise ConfigError("mirror-loss", self.mirror_loss, PROBABILITY())
        if not 0 <= self.mirror_loss_seed < 2**64:
            raise ConfigError(
                "mirror-loss-seed", self.mirror_loss_seed, WHOLE_NUMBER(least=0, most=2**64 - 1)
            )
        late = self.late_join or LateJoin()
        for option, step in (
            ("mirror-loss-from", self.mirror_loss_from),
            ("join-at", late.join_at),
            ("leave-at", late.leave_at),
            ("gap-at", late.gap_at),
        ):
            if step is not None and not 1 <= step < self.steps:
                right = STEP_OF_RUN(most=self.steps - 1, steps=self.steps)
                raise ConfigError(option, step, right)
        if self.save_every is not None and self.save_every < 1:
            raise ConfigError("save-every", self.save_every, AT_LEAST_ONE())
        for option, variable in READ_BY_TRAINERS.items():
            told = self.environment.get(variable)
            if told is not None:
                _as_a_trainer_reads(option, variable, told)
        self._check_algorithms()

    def _check_algorithms(self) -> None:
        """Raises ConfigError for an algorithm that NCCL would not take on such hosts."""
        asked, made = (self.algo or "").upper(), self.cluster
        if asked != "NVLSTREE" and self.nvls_from is None:
            return
        minor = int(self.nccl.split(".")[1])
        gpus, nics = nvls_needs(20000 + 100 * minor)
        needs = NVLS_NEEDS(gpus=gpus, nics=nics, minor=minor)
        if made.gpus < gpus:
            raise ConfigError("gpus-per-host", made.gpus, needs)
        if made.nics < nics:
            raise ConfigError("nics-per-host", made.nics, needs)
        if self.protocol is not None and self.protocol.upper() != "SIMPLE":
            raise ConfigError("protocol", self.protocol, NVLS_IS_SIMPLE())

    @property
    def trainers_folder(self) -> Path:
        """Folder of the trainers' files, hidden from FlowCheck's services."""
        return self.folder / "trainers"

    @property
    def services_folder(self) -> Path:
        """Folder of the files of FlowCheck's services."""
        return self.folder / "services"

    @property
    def saves_folder(self) -> Path:
        """Folder of the trainers' periodic saves, which the services see as a shared disk."""
        return self.folder / "saves"

    @property
    def hook_token(self) -> Path:
        """File of the hook's token, which both sides read as if each had its own."""
        return self.services_folder / "hook.token"

    @property
    def run(self) -> Path:
        """Run directory of the chain."""
        return self.services_folder / "run"

    @property
    def created_folders(self) -> tuple[Path, ...]:
        """Folders that the run creates, and that the next run replaces."""
        saves = () if self.save_every is None else (self.saves_folder,)
        return (self.trainers_folder, self.services_folder, *saves)

    @property
    def digests(self) -> Path:
        """File of the digests that the trainer writes after each step."""
        return self.trainers_folder / "digests.jsonl"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that configure the trainers' network."""
        told = {
            "FLOWCHECK_LAB_INTERFACE": ",".join(self.cluster.interfaces),
            "FLOWCHECK_LAB_NCCL": self.nccl,
            "NCCL_MIN_NCHANNELS": str(self.channels),
            "NCCL_MAX_NCHANNELS": str(self.channels),
        }
        if self.protocol is not None:
            told["NCCL_PROTO"] = self.protocol
        if self.algo is not None:
            told["NCCL_ALGO"] = self.algo
        if self.tree_below is not None:
            told["FLOWCHECK_LAB_TREE_BELOW"] = str(self.tree_below)
        if self.nvls_from is not None:
            told["FLOWCHECK_LAB_NVLS_FROM"] = str(self.nvls_from)
        if self.loss:
            told["FLOWCHECK_LAB_LOSS"] = repr(self.loss)
        return told

    def environment_of_job(self, first_host: int) -> dict[str, str]:
        """Environment variables of the trainers that FlowCheck follows. first_host: of their rank
        0."""
        if not self.hook:
            return self.environment
        return self.environment | hook_environment(self.cluster, first_host, self.hook_token)

    def script(self, name: str, *more: str) -> Script:
        """The training script with its arguments. name: folder for its files; more: further
        arguments."""
        out = ("--steps", str(self.steps), "--out", str(self.trainers_folder / name))
        return Script(GPT, (*out, *self.arguments, *self._saving, *more))

    @property
    def _saving(self) -> tuple[str, ...]:
        """Behind the user's arguments, so that it holds where both say it."""
        if self.save_every is None:
            return ()
        return "--save-every", str(self.save_every), "--saves", str(self.saves_folder)


def _as_a_trainer_reads(option: str, variable: str, told: str) -> None:
    """Raises ConfigError for what would end each trainer, after everything else was started."""
    try:
        # With a path MTU stated, no interface is looked at.
        trainer_environment.read_settings(
            {trainer_environment.INTERFACE: UPLINK, "FLOWCHECK_LAB_PMTU": "4096", variable: told}
        )
    except SystemExit as error:
        raise ConfigError(option, told, TRAINER_TAKES[option]) from error


def optimizer_settings_of(arguments: Sequence[str], steps: int) -> dict[str, Any]:
    """The [optimizer] table for these arguments of the training script, as a user would state it.
    Raises ConfigError for arguments that the script refuses."""
    given = script_module().arguments(["--steps", str(steps), *arguments])
    optimizer: dict[str, Any] = {
        "name": "sgd" if given.sgd else "adamw",
        "learning_rate": given.lr,
        "weight_decay": given.weight_decay,
        "schedule": f"{GPT}:schedule",
        "schedule_arguments": {
            "warmup": given.warmup,
            "steps": given.steps,
            "floor": given.floor,
        },
    }
    if given.sgd:
        optimizer["momentum"] = 0.9
    if given.clip is not None:
        optimizer["clip_norm"] = given.clip
    if given.sync_each:
        optimizer["synced_backwards"] = given.accumulate
    return optimizer


def job_file(plan: LabPlan, *, digests: bool = True) -> str:
    """The job file as an operator would write it. digests: hash every step, for comparison."""
    settings = optimizer_settings_of(plan.arguments, plan.steps)
    if plan.jobs > 1 and "clip_norm" in settings:
        settings["clip_alone"] = True
    several = [f"jobs = {plan.jobs}", "together = false"] if plan.jobs > 1 else []
    lines = [
        *several,
        f"run = {json.dumps(str(plan.run))}",
        f"checkpoint = {json.dumps(str(plan.services_folder / 'checkpoints'))}",
        f"digests = {json.dumps(digests)}",
        "",
        "[ring]",
        f"slots = {RING_SLOTS}",
        "",
        "[staging]",
        f"size_bytes = {STAGING_BYTES // plan.jobs}",
        "",
        "[[source]]",
        f"interface = {json.dumps(UPLINK)}",
        "",
        "[optimizer]",
        *optimizer_lines(settings),
        "",
    ]
    if plan.save_every is not None:
        lines += ["[audit]", f"folder = {json.dumps(str(plan.saves_folder))}", ""]
    if plan.hook:
        first = range(0, plan.cluster.hosts, plan.cluster.hosts // plan.jobs)
        lines += hook_lines(plan.cluster, first, plan.hook_token)
    if plan.late_join is not None and plan.late_join.comes_new:
        lines += model_lines(plan.arguments, plan.steps)
    return "\n".join(lines)


def model_lines(arguments: Sequence[str], steps: int) -> list[str]:
    """The [model] table as lines of TOML, for a chain that does not see the start of the job."""
    given = script_module().arguments(["--steps", str(steps), *arguments])
    shape = {key: getattr(given, key) for key in ("layers", "width", "heads", "context", "dropout")}
    told = ", ".join(f"{key} = {json.dumps(value)}" for key, value in shape.items())
    model = GPT.with_name("gpt_model.py")
    cap = [] if given.bucket_mb is None else [f"bucket_cap_mb = {given.bucket_mb}"]
    return [
        "[model]",
        f"factory = {json.dumps(f'{model}:make')}",
        f"factory_arguments = {{ {told} }}",
        f"loss = {json.dumps(f'{model}:loss')}",
        *cap,
        "",
    ]


def optimizer_lines(settings: dict[str, Any]) -> list[str]:
    """The [optimizer] table as lines of TOML."""
    schedule = ", ".join(
        f"{key} = {json.dumps(value)}" for key, value in settings["schedule_arguments"].items()
    )
    plain = {key: value for key, value in settings.items() if key != "schedule_arguments"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    return [*lines, f"schedule_arguments = {{ {schedule} }}"]


def script_module() -> Any:
    """The training script as an imported module, for its argument parser."""
    try:
        return import_file(GPT)
    except SystemExit as error:
        raise ConfigError("script", str(GPT), SCRIPT_ENDED(str(error.code))) from error
