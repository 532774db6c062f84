"""What the package says of every optimizer and setting, in plain words that a file can hold: run as
a program it writes them to tests/data/optimizers/, where a later version is held against them.

    PYTHONPATH=.:tests python -m support.optimizer_facts tests/data/optimizers
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import torch

from flowcheck.config import (
    GroupConfig,
    JobConfig,
    OptimizerConfig,
    OptimizerPartConfig,
    SourceConfig,
)
from flowcheck.config.optimizer_config import AverageConfig, ScalerConfig
from flowcheck.config.optimizer_validation import validate_optimizer
from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog import refused_optimizers as refused
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.refused_user_code import RAISED
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.c_kernel_rules import Arithmetic
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.optimizer_builder import build_optimizer
from flowcheck.replica.optimizer.state_sections import describe_sections
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.optimizer_step.torch_step import InPlaceTorchOptimizers, writes_gradient
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer, check_optimizer_name
from flowcheck.replica.state_file.file_header import Description
from flowcheck.replica.state_file.state_file import place_sections
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.vault.checkpoint_formats import dcp_format
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.trainer_checkpoint.step_counters import is_stateless
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter

CLASSES = {
    key.lower(): kind
    for key, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
}
NAMES = (*sorted(CLASSES), "none", "nosuch", "")
MATRICES = ((3, 4), (2, 6))
MIXED = ((3, 4), (5,), ())
GROUP = GroupConfig(parameters=("0",), weight_decay=0.5)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "foreach": {"implementation": "foreach"},
    "fused": {"implementation": "fused"},
    "cuda": {"device": "cuda"},
    "momentum": {"momentum": 0.9},
    "momentum foreach": {"momentum": 0.9, "implementation": "foreach"},
    "momentum fused": {"momentum": 0.9, "implementation": "fused"},
    "damped": {"momentum": 0.9, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "nesterov foreach": {"momentum": 0.9, "nesterov": True, "implementation": "foreach"},
    "nesterov decay": {
        **{"momentum": 0.9, "nesterov": True, "implementation": "foreach"},
        "weight_decay": 0.1,
    },
    "nesterov maximize": {
        **{"momentum": 0.9, "nesterov": True, "implementation": "foreach"},
        "maximize": True,
    },
    "nesterov alone": {"nesterov": True},
    "nesterov damped": {"momentum": 0.9, "nesterov": True, "dampening": 0.1},
    "amsgrad": {"amsgrad": True},
    "betas": {"betas": (0.8, 0.99)},
    "no first beta": {"betas": (0.0, 0.99)},
    "no second beta": {"betas": (0.9, 0.0)},
    "eps": {"eps": 1e-6},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "capturable": {"arguments": {"capturable": True}},
    "differentiable": {"arguments": {"differentiable": True}},
    "groups": {"groups": (GROUP,)},
    "group of momentum": {"groups": (msgspec.structs.replace(GROUP, momentum=0.9),)},
    "group of amsgrad": {"groups": (msgspec.structs.replace(GROUP, amsgrad=True),)},
    "masters": {"master_dtype": "float32"},
    "scaler": {"scaler": ScalerConfig()},
    "average": {"average": AverageConfig()},
    "divisor": {"gradient_divisor": 2.0},
    "clip": {"clip_norm": 1.0},
    "clip value": {"clip_value": 1.0},
    "no rate": {"learning_rate": None},
}
TWO_BYTES = ("plain", "foreach", "fused", "momentum", "momentum foreach", "momentum fused")
"""Options that are looked at with parameters of bfloat16 as well, and with masters of them."""


class OwnSgd(torch.optim.SGD):
    """A script's own, of torch's parts."""


def made(named: list[tuple[str, torch.Tensor]], kind: str, **arguments: Any) -> Any:
    """A script's factory."""
    own = [OwnSgd] if kind == "own" else [CLASSES[name] for name in kind.split("+")]
    share = -(-len(named) // len(own))
    return [
        each([p for _, p in named[at * share : (at + 1) * share]], lr=0.1, **arguments)
        for at, each in enumerate(own)
    ]


def configs() -> Iterator[tuple[str, OptimizerConfig, str]]:
    """(what it is called, settings, dtype of the parameters)"""
    for name in NAMES:
        for option, more in OPTIONS.items():
            config = OptimizerConfig(**{"name": name, "learning_rate": 0.1, **more})
            yield f"{name}: {option}", config, "float32"
            if option in TWO_BYTES:
                yield f"{name}: {option}, bfloat16", config, "bfloat16"
    for kind in (*sorted(CLASSES), "own", "sgd+adamw"):
        config = OptimizerConfig(
            factory="support.optimizer_facts:made", factory_arguments={"kind": kind}
        )
        yield f"factory of {kind}", config, "float32"
    for names in (("muon", "adamw"), ("sgd", "adagrad"), ("adam", "none"), ("adam", "nosuch")):
        each = tuple(
            OptimizerPartConfig(name=name, parameters=(str(at),), learning_rate=0.1)
            for at, name in enumerate(names)
        )
        yield f"each of {'+'.join(names)}", OptimizerConfig(each=each), "float32"


RECORDED_AS_TEXT = (
    refused.CLASS_HAS_NO_SETTING,
    refused.HAS_NO_SETTING,
    refused.IN_NO_TABLE,
    refused.LEARNING_RATE_NEEDED,
    refused.NAME_NEEDED,
    refused.NAME_NOT_STATED,
    refused.NO_IMPLEMENTATION,
    refused.NOT_AN_ARGUMENT,
    refused.TORCH_REFUSES,
    refused.UNKNOWN_CLASS,
    RAISED,
)
"""Had no codes when facts were recorded: their sentences are what is compared."""
WORDS_THEN = {
    refused.NOT_AN_ARGUMENT.code: (("is not an argument", "is no argument"),),
}
"""(now, then) of sentences that say it in other words since."""

SENTENCES_THEN = {
    refused.IN_NO_TABLE.code: "is of no [[optimizer.each]]: state which optimizer steps it, as by "
    'parameters = "rest"',
    refused.LEARNING_RATE_NEEDED.code: "must be stated: the trainer's own, such as "
    "learning_rate = 1e-4",
    refused.NAME_NEEDED.code: "the optimizer never crosses the wire: state a class of torch.optim, "
    'such as {known}; or optimizer.factory = "train.py:make_optimizer"',
    refused.UNKNOWN_CLASS.code: "torch.optim of torch {torch} has {known}; of another class "
    "optimizer.factory tells how it is made",
}
"""Whole sentences of then: what to do stands beside them now (`remedy`)."""


def recorded_as(right: Finding) -> str:
    """A finding as it was recorded: its code, or the sentence of one that had no code."""
    if not right.is_any_of(*RECORDED_AS_TEXT):
        return right.code
    if right.is_any_of(refused.NAME_NOT_STATED):
        right = right.arguments["needed"]
    if (then := SENTENCES_THEN.get(right.code)) is not None:
        shown = {
            name: ", ".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in right.arguments.items()
        }
        return then.format_map(shown)
    text = str(right)
    for now, then in WORDS_THEN.get(right.code, ()):
        assert now in text, text
        text = text.replace(now, then)
    return text


def tried(call: Callable[[], object]) -> Any:
    """What it returns, or what it is refused with: codes, and the texts that had none."""
    try:
        return call()
    except ConfigError as error:
        return f"ConfigError: {error.key} = {error.value!r}: {recorded_as(error.right)}"
    except FlowCheckError as error:
        found = error.finding
        return f"{type(error).__name__}: {error if found.is_any_of(ERROR_TEXT) else found.code}"


class Facts:
    """Of one optimizer."""

    def __init__(self, config: OptimizerConfig, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.layout = Layout.of_shapes(MATRICES, dtype=dtype)
        self.mixed = Layout.of_shapes(MIXED, dtype=dtype)

    def all(self) -> dict[str, Any]:
        """{what: how it is}"""
        config = self.config
        found: dict[str, Any] = {
            "job file": tried(lambda: validate_optimizer(config)),
            "name": tried(lambda: check_optimizer_name("--optimizer", config)),
            "preflight": tried(lambda: check_optimizer(config)),
            "preflight of a model": tried(lambda: check_optimizer(config, self.layout)),
            "layout": tried(self._layout),
            "sections": tried(lambda: self._sections(self.mixed, leaves_out=False)),
            "sections left out": tried(lambda: self._sections(self.mixed, leaves_out=True)),
            "sections of matrices": tried(lambda: self._sections(self.layout, leaves_out=False)),
            "writes gradient": writes_gradient(config),
        }
        if isinstance(found["sections of matrices"], str) or config.name == "none":
            return found
        built = tried(self._built)
        if isinstance(built, str):
            return found | {"built": built}
        return found | self._of_torchs_objects(built) | {"dcp": self._dcp(built)}

    def _layout(self) -> list[str]:
        """The job's layout as it is learned."""
        size = 2 if self.dtype == "bfloat16" else 4
        wires = [
            Parameter(sizes=s, strides=(s[1], 1), element_bytes=size, dtype=self.dtype)
            for s in MATRICES
        ]
        job = LearnedJob(
            era=NcclEra.V2_29,
            **{"communicators": (), "edges": (), "first_buckets": (), "buckets": ()},
            parameters=tuple(wires),
            first=(),
            each=(),
        )
        layout = layout_of(
            job, JobConfig(source=(SourceConfig(file="c.pcapng"),), optimizer=self.config)
        )
        return [layout.dtype_of(p) for p in layout.parameters]

    def _sections(self, layout: Layout, *, leaves_out: bool) -> list[str]:
        """Each section as the state file's description has it."""
        found = place_sections(describe_sections(layout, self.config, leaves_out))
        return [msgspec.json.encode(section).decode() for section in found]

    def _built(self) -> Any:
        leaves = [
            torch.ones(s, dtype=getattr(torch, self.dtype), requires_grad=True) for s in MATRICES
        ]
        return build_optimizer(self.config, self.layout, leaves)

    def _of_torchs_objects(self, built: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"in place": self._in_place()}
        for number, own in enumerate(built.optimizers):
            found[f"rests on {number}"] = [each.code for each in c_kernel_args.cpu_assumptions(own)]
            found[f"kernel {number}"] = {
                str(arithmetic): self._kernel(own, arithmetic) for arithmetic in Arithmetic
            }
        return found

    def _kernel(self, own: torch.optim.Optimizer, arithmetic: Arithmetic) -> str:
        """Why C does not take its steps, or a sum of what C is told in its first and third."""
        if why := c_kernel_args.why_no_c_kernel(own, self.layout, arithmetic):
            return why.code
        groups = [
            (g, np.arange(at, at + len(g["params"]))) for at, g in enumerate(own.param_groups)
        ]
        count = len(MATRICES)
        used, summed = np.ones(count, np.bool_), hashlib.sha256()
        for before in (0, 2):
            steps = np.full(count, before, np.float32)
            table = c_kernel_args.kernel_args(
                own, groups, steps, steps > 0, used, scale=0.5, arithmetic=arithmetic
            )
            summed.update(table.tobytes())
        wide = c_kernel_args.double_kernel_args(own, groups, count, arithmetic)
        summed.update(b"" if wide is None else wide.tobytes())
        return summed.hexdigest()[:16]

    def _in_place(self) -> dict[str, Any]:
        """How torch is led through a first step, over one copy's memory."""
        description = Description(
            self.layout, place_sections(describe_sections(self.layout, self.config, False))
        )
        arrays = {s.name: np.zeros(s.elements, s.dtype) for s in description.sections}
        stepper = InPlaceTorchOptimizers(self.config, description, arrays)
        stepper.give_states(has_state=False)
        pairs = zip(stepper._of, stepper._leaves, strict=True)
        given = [sorted(own.state.get(leaf, {})) for own, leaf in pairs if own is not None]
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with stepper.trainers_threads():
                threads = torch.get_num_threads()
        finally:
            torch.set_num_threads(before)
        return {"states given before the first step": given, "threads of two": threads}

    def _dcp(self, built: Any) -> Any:
        """(number of parameters without a state, [parameter] its states and their first numbers)
        of a folder of torch.distributed.checkpoint behind no step."""
        if len(built.optimizers) > 1:
            return None
        own = built.optimizers[0]
        leaves = [p for group in own.param_groups for p in group["params"]]
        names = [p.name for p in self.layout.parameters]
        model = {name: leaf.detach() for name, leaf in zip(names, leaves, strict=True)}
        given = TrainerState(0, "d" * 32, self.config, model, own.state_dict())
        whole, missing = dcp_format._complete(contents_of(given, self.layout))
        assert whole.trainer_state.optimizer is not None
        states = {
            str(number): {name: float(value.float().sum()) for name, value in state.items()}
            for number, state in whole.trainer_state.optimizer["state"].items()
        }
        return [missing, states, is_stateless(own.state_dict())]


def stepped(path: Path, name: str, more: dict[str, Any], steps: int) -> str:
    """Makes a replica's state file behind so many steps. Returns the sha256 of it at step 0."""
    config = OptimizerConfig(name=name, learning_rate=0.1, **more)
    layout = Layout.of_shapes(MATRICES)
    generator = torch.Generator().manual_seed(11)
    replica = Replica.create(path, layout, config, torch.randn(24, generator=generator).numpy())
    begun = hashlib.sha256(path.read_bytes()).hexdigest()
    for step in range(1, steps + 1):
        replica.apply(step, torch.randn(24, generator=generator).numpy())
    replica.close()
    return begun


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {}),
    "sgd-momentum": ("sgd", {"momentum": 0.9, "dampening": 0.3}),
    "adam-amsgrad": ("adam", {"amsgrad": True}),
    "adamw": ("adamw", {"weight_decay": 0.1}),
    "adagrad": ("adagrad", {"arguments": {"initial_accumulator_value": 0.5}}),
    "rmsprop": ("rmsprop", {"momentum": 0.5}),
    "adafactor": ("adafactor", {}),
}
"""State files that are kept: their name, the optimizer, its settings."""
FILE_STEPS = 2


def begun_files(folder: Path) -> dict[str, str]:
    """{class: sha256 of its state file at step 0}"""
    names = sorted(name for name in CLASSES if name not in ("lbfgs", "sparseadam"))
    return {name: stepped(folder / name, name, {}, 0) for name in names}


def facts() -> dict[str, dict[str, Any]]:
    """{optimizer and setting: {what: how it is}}, as on a CPU whose arithmetic C knows."""
    with (
        patch.object(c_kernel_args, "cpu_kernels_use_fma", lambda: True),
        patch.object(c_kernel_args, "square_root_kind", lambda: 0),
    ):
        return {key: Facts(config, dtype).all() for key, config, dtype in configs()}


def packed(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each text once."""
    texts: dict[str, int] = {}
    rows = {
        key: {what: texts.setdefault(json.dumps(own), len(texts)) for what, own in row.items()}
        for key, row in found.items()
    }
    return {"texts": list(texts), "rows": rows}


def unpacked(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As `facts` gave it, in JSON's types."""
    texts = [json.loads(text) for text in tree["texts"]]
    return {key: {what: texts[at] for what, at in row.items()} for key, row in tree["rows"].items()}


def main(folder: Path) -> None:
    """Writes facts.json.gz and the state files."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        tree = {
            "torch": torch.__version__,
            "begun": begun_files(Path(place)),
            **packed(facts()),
        }
        for key, (name, more) in FILES.items():
            stepped(Path(place) / f"{key}.state", name, more, FILE_STEPS)
            raw = (Path(place) / f"{key}.state").read_bytes()
            (folder / f"{key}.state.gz").write_bytes(gzip.compress(raw, 9, mtime=0))
    text = json.dumps(tree, separators=(",", ":")).encode()
    (folder / "facts.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
