"""The units of the user's sharded model (FSDP, ZeRO, Megatron), found by running its factory in
a process of its own.

Its process group is torch's fake one, of as many ranks as the job has, and its parameters are on
the meta device: nothing is sent and no weight is made. What the factory returns is wrapped as in
the training script, with fully_shard or FullyShardedDataParallel.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import (
    ENDED_SILENTLY,
    ENDED_THE_TRIAL,
    MODEL_NOT_A_MODULE,
    TOOK_TOO_LONG,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.sharding.gather_units import GatherUnit, ShardedModel, UnitParameter
from flowcheck.replica.sharding.zero_megatron_layout import (
    NamedParameter,
    ShardingSettings,
    shard_parameters,
)
from flowcheck.replica.user_code import load_callable, user_error_finding

KEY = "sharded.factory"
REFUSED = 3
"""Exit status of that process where its last line is the finding why there are no units."""
LIMIT_S = 300.0
"""Seconds for the user's model to be made. A choice: longer delays the error of code that hangs,
shorter fails for large models."""


def probe_sharded_model(
    factory: str, ranks: int, how: ShardingSettings | None = None
) -> ShardedModel:
    """The units of the model that `factory`, "file.py:function", returns in a job of `ranks` ranks.
    how: settings of a trainer other than FSDP. Raises ConfigError."""
    more = [msgspec.json.encode(how).decode()] if how is not None else []
    told = run_probe("flowcheck.replica.sharding.sharded_model_probe", factory, str(ranks), *more)
    return msgspec.json.decode(told, type=ShardedModel)


def run_probe(module: str, factory: str, *arguments: str, key: str = KEY) -> str:
    """The last line that `module` prints, run as a program with the factory and the arguments.
    key: what the factory was given as.
    Raises ConfigError with the finding that it ends with (`answer`), or where it does not end as
    it should."""
    command = [sys.executable, "-m", module, factory, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(key, factory, TOOK_TOO_LONG(LIMIT_S)) from error
    if done.returncode == REFUSED:
        raise ConfigError(
            key, factory, msgspec.json.decode(done.stdout.splitlines()[-1], type=Finding)
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        told = ENDED_THE_TRIAL(last[0]) if last else ENDED_SILENTLY(done.returncode)
        raise ConfigError(key, factory, told)
    return done.stdout.splitlines()[-1]


def _main(factory: str, ranks: int, *how: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    made = load_callable(KEY, factory)
    _stay_on_meta()
    with torch.device("meta"), torch.no_grad():
        model = made()
    check_is_module(factory, model[0] if how and isinstance(model, tuple) else model)
    if how:
        laying = msgspec.json.decode(how[0], type=ShardingSettings)
        groups, every = _groups_of(model)
        print(msgspec.json.encode(shard_parameters(groups, every, ranks, laying)).decode())
        return
    found = [*_fsdp2(model), *_fsdp1(model)]
    if not found:
        raise ValueError(
            f"returned a {type(model).__name__} that is not sharded: call fully_shard or "
            "FullyShardedDataParallel in it, as the training script does"
        )
    if len({over for over, _ in found}) != 1:
        over = ", ".join(sorted({str(over) for over, _ in found})) or "none"
        raise ValueError(f"the model must be sharded over one number of ranks, not {over}")
    units = [unit for _, unit in found]
    own = {piece.name for unit in units for piece in unit.pieces}
    # Flat parameters have no names of their own: modules' order is the one of registration then.
    registered = [plain_name(n) for n, _ in model.named_parameters() if plain_name(n) in own]
    flat = [p.name for unit in units for p in unit.pieces if p.name not in registered]
    names = tuple(registered if not flat else flat + registered)
    print(
        msgspec.json.encode(
            ShardedModel(ranks=found[0][0], units=tuple(units), names=names)
        ).decode()
    )


def check_is_module(factory: str, made: object) -> None:
    """Raises ConfigError for anything but a torch module."""
    import torch

    if not isinstance(made, torch.nn.Module):
        raise ConfigError(KEY, factory, MODEL_NOT_A_MODULE(type(made).__name__))


def _groups_of(made: Any) -> tuple[list[list[NamedParameter]], list[NamedParameter]]:
    """(trainable parameters by the optimizer's groups, all parameters). The factory returns the
    groups together with the model; without them there is one group."""
    model, groups = made if isinstance(made, tuple) else (made, [list(made.parameters())])
    named = {
        id(p): NamedParameter(
            name=name,
            shape=tuple(p.shape),
            dtype=str(p.dtype).removeprefix("torch."),
            own_bucket=bool(getattr(p, "shared_embedding", False)),
        )
        for name, p in model.named_parameters()
    }
    trained = [[named[id(p)] for p in group if p.requires_grad] for group in groups]
    return trained, list(named.values())


def _fsdp2(model: Any) -> Iterator[tuple[int, GatherUnit]]:
    """(ranks it is cut for, unit) of fully_shard: a unit for each wrapped module that has
    parameters of its own."""
    from torch.distributed.fsdp import FSDPModule

    names = {id(p): name for name, p in model.named_parameters()}
    for name, module in model.named_modules():
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            group = getattr(state, "_fsdp_param_group", None)
            groups = [group] if group is not None else []
        for group in groups:
            yield group.mesh_info.shard_mesh_size, _unit_of(name, group, names)


def _unit_of(name: str, group: Any, names: dict[int, str]) -> GatherUnit:
    pieces, at = [], 0
    for param in group.fsdp_params:
        param.init_dtype_attrs(group.mp_policy)
        if hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather"):
            raise ValueError(f"{names[id(param.sharded_param)]} is gathered in a form of its own")
        dtype = param.param_dtype or param.orig_dtype
        pieces.append(
            UnitParameter(
                name=names[id(param.sharded_param)],
                shape=tuple(param._orig_size),
                dtype=str(dtype).removeprefix("torch."),
                start_byte=at,
                dim=param.fsdp_placement.dim,
                shard_shape=tuple(param.padded_sharded_param_size),
            )
        )
        at += param.padded_sharded_param_size.numel() * dtype.itemsize
    return GatherUnit(name=name, block_bytes=at, pieces=tuple(pieces))


def _stay_on_meta() -> None:
    """FSDP1 materializes parameters on a device it finds: here it must leave them as they are."""
    import torch

    made: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    wraps: Any = importlib.import_module("torch.distributed.fsdp.fully_sharded_data_parallel")

    meta = torch.device("meta")
    torch.meta = torch.cpu  # type: ignore[attr-defined]  # a device needs a module of its name
    made._need_to_materialize_module = lambda *_, **__: (False, False)
    made._get_compute_device = lambda *_, **__: meta
    made._get_device_from_device_id = lambda *_, **__: None

    def handle(state: Any, *_: object) -> Any:
        state._device_handle = made._FSDPDeviceHandle(meta, backend=torch.cpu)
        return state

    wraps._init_device_handle = handle


def _fsdp1(model: Any) -> Iterator[tuple[int, GatherUnit]]:
    """(ranks it is cut for, unit) of FullyShardedDataParallel: a flat parameter of each wrapped
    module that has any of its own, the end of the last rank's part filled up."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for name, module in model.named_modules():
        handle = module._handle if isinstance(module, FullyShardedDataParallel) else None
        if handle is None:
            continue
        flat, dtype = handle.flat_param, handle._fwd_bwd_param_dtype
        assert dtype is not None
        prefix = f"{plain_name(name)}." if plain_name(name) else ""
        own = iter(zip(flat._fqns, flat._shapes, strict=True))
        pieces, at = [], 0
        for count, fills in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not fills:
                fqn, shape = next(own)
                pieces.append(
                    UnitParameter(
                        name=prefix + plain_name(fqn),
                        shape=tuple(shape),
                        dtype=str(dtype).removeprefix("torch."),
                        start_byte=at,
                    )
                )
            at += count * dtype.itemsize
        size = flat._sharded_size.numel() * dtype.itemsize
        yield (
            handle.world_size,
            GatherUnit(name=plain_name(name), block_bytes=size, pieces=tuple(pieces)),
        )


def plain_name(name: str) -> str:
    """Without what wrapping adds."""
    return name.replace("_fsdp_wrapped_module.", "").removesuffix("_fsdp_wrapped_module")


def answer(main: Callable[..., None], *arguments: object) -> None:
    """What a probe's own process does: its program, which ends with the reason, as `run_probe`
    reads it, where it raises."""
    try:
        main(*arguments)
    except ConfigError as wrong:
        _refuse(wrong.right)
    except Exception as wrong:  # the user's code may raise anything
        _refuse(user_error_finding(wrong))


def _refuse(why: Finding) -> NoReturn:
    print(f"\n{msgspec.json.encode(why).decode()}", flush=True)
    sys.exit(REFUSED)


if __name__ == "__main__":
    answer(_main, sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
