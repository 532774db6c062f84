"""Hybrid sharding (HSDP) as torch itself lays it out: the user's factory is run in a process of
its own, whose process group is torch's fake one, of as many ranks as the job has.

Once on the meta device, for names, shards and groups; and once on the CPU behind
`torch.manual_seed`, for the weights that the trainer starts with.

Sources: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param.py (_init_sharded_param: rows
of a shard and their padding), _fsdp_param_group.py (post_backward: which gradients are summed
together), _fsdp_collectives.py (foreach_reduce, _get_gradient_divide_factors).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.replica.sharding.hybrid_model import HybridModel, HybridParameter
from flowcheck.replica.sharding.sharded_model_probe import (
    KEY,
    answer,
    check_is_module,
    run_probe,
)
from flowcheck.replica.user_code import load_callable

MODULE = "flowcheck.replica.sharding.hybrid_probe"
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts of names that activation checkpointing and torch.compile add; a checkpoint has none of them
(torch/distributed/checkpoint/state_dict.py, _get_fqns)."""


def probe_hybrid_model(factory: str, mesh: tuple[int, int], shard: int) -> HybridModel:
    """The shard `shard` of the model that `factory`, "file.py:function", returns. Raises
    ConfigError."""
    return probe_hybrid_models(factory, mesh, (shard,))[0]


def probe_hybrid_models(
    factory: str, mesh: tuple[int, int], shards: Sequence[int]
) -> list[HybridModel]:
    """Likewise, [shard] in one process: to start torch takes longer than to make the model. Raises
    ConfigError."""
    told = run_probe(MODULE, factory, *map(str, mesh), ",".join(map(str, shards)))
    return msgspec.json.decode(told, type=list[HybridModel])


def write_start_weights(
    factory: str, mesh: tuple[int, int], shard: int, seed: int, place: Path
) -> None:
    """Writes what that shard's parameters are behind `torch.manual_seed(seed)` and the factory:
    without padding, back to back in registration order, each in index order. Raises
    ConfigError."""
    run_probe(MODULE, factory, *map(str, (*mesh, shard, seed, place)))


def _main(factory: str, of_replicas: str, of_shards: str, own: str, *start: str) -> None:
    import torch

    mesh = int(of_replicas), int(of_shards)
    shards = [int(shard) for shard in own.split(",")]
    _meshes_of_cpus()
    made = load_callable(KEY, factory)
    if start:
        seed, place = start
        _begin_as(mesh, shards[0])
        torch.manual_seed(int(seed))
        model = made()
        check_is_module(factory, model)
        _write(model, Path(place))
        print()
        return
    models = []
    for shard in shards:
        _begin_as(mesh, shard)
        with torch.device("meta"), torch.no_grad():
            model = made()
        check_is_module(factory, model)
        models.append(_model_of(model, mesh, shard))
    print(msgspec.json.encode(models).decode())


def _begin_as(mesh: tuple[int, int], shard: int) -> None:
    """This process is the rank of a shard in the first node."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    ranks = mesh[0] * mesh[1]
    dist.init_process_group("fake", store=FakeStore(), rank=shard, world_size=ranks)


def _meshes_of_cpus() -> None:
    """Scripts make a mesh of GPUs, of which this machine may have none."""
    import torch.distributed as dist
    import torch.distributed.device_mesh as meshes

    real = meshes.init_device_mesh

    def on_cpus(device_type: str, *arguments: Any, **options: Any) -> Any:
        return real("cpu", *arguments, **options)

    meshes.init_device_mesh = on_cpus
    dist.init_device_mesh = on_cpus  # type: ignore[attr-defined]


def _groups_of(model: Any) -> Iterator[Any]:
    """The parameter groups of `fully_shard`, in module order."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            group = getattr(state, "_fsdp_param_group", None)
            groups = [group] if group is not None else []
        yield from groups


def _model_of(model: Any, mesh: tuple[int, int], shard: int) -> HybridModel:
    groups = list(_groups_of(model))
    if not groups:
        raise ValueError("is not sharded: call fully_shard in it, as the training script does")
    trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    number = {key: n for n, key in enumerate(trained)}
    pieces: dict[int, HybridParameter] = {}
    summed: list[tuple[int, ...]] = []
    kinds: set[tuple[str, str]] = set()
    divisors: set[float] = set()
    for group in groups:
        _check_mesh(group, mesh)
        own = [p for p in group.fsdp_params if id(p.sharded_param) in trained]
        for param in own:
            key = id(param.sharded_param)
            param.init_dtype_attrs(group.mp_policy)
            pieces[number[key]] = _parameter_of(param, trained[key], shard)
            sent = param.reduce_dtype or param.param_dtype or param.orig_dtype
            kinds.add((_name_of(param.orig_dtype), _name_of(sent)))
        if own:
            summed.append(tuple(number[id(p.sharded_param)] for p in own))
            divisors.add(_divisor_of(group, own[0]))
    if missing := [name for key, name in trained.items() if number[key] not in pieces]:
        raise ValueError(f"{missing[0]} is in no group of fully_shard: its gradient is not summed")
    if len(divisors) > 1:
        raise ValueError("groups divide their sums by different numbers")
    reduced = {sent for _, sent in kinds}
    if all(own == sent for own, sent in kinds):
        reduce_dtype = None
    elif len(reduced) == 1:
        reduce_dtype = reduced.pop()
    else:
        raise ValueError(f"groups sum in several types: {', '.join(sorted(reduced))}")
    return HybridModel(
        mesh=mesh,
        shard=shard,
        parameters=tuple(pieces[n] for n in sorted(pieces)),
        groups=tuple(summed),
        reduce_dtype=reduce_dtype,
        divisor=divisors.pop() if divisors else 1.0,
    )


def _check_mesh(group: Any, mesh: tuple[int, int]) -> None:
    """Raises ValueError where a group is sharded over another mesh than the stated one."""
    info = group.mesh_info
    replicas = getattr(info, "replicate_mesh_size", 1)
    shards = getattr(info, "shard_mesh_size", 1)
    if (replicas, shards) != mesh:
        raise ValueError(
            f"is sharded over a mesh ({replicas}, {shards}), not over the stated "
            f"({mesh[0]}, {mesh[1]})"
        )


def _parameter_of(param: Any, name: str, shard: int) -> HybridParameter:
    dim = param.fsdp_placement.dim
    # Other dimensions than the first must divide evenly: nothing is padded there.
    padded = param.padded_sharded_param_size if dim == 0 else param.sharded_size
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return HybridParameter(
        name=name,
        shape=tuple(param._orig_size),
        dim=dim,
        shard_shape=tuple(padded),
        start=min(shard * padded[dim], param._orig_size[dim]),
        own_shape=tuple(param.sharded_size),
        dtype=_name_of(param.sharded_param.dtype),
    )


def _divisor_of(group: Any, param: Any) -> float:
    """What the group divides each sum by, behind the all-reduce."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors

    sent = param.reduce_dtype or param.param_dtype or param.orig_dtype
    _, post, _, _ = _get_gradient_divide_factors(
        group._reduce_scatter_process_group,
        group._all_reduce_process_group,
        sent,
        "cpu",
        group.gradient_divide_factor,
        group.force_sum_reduction_for_comms,
    )
    return float(post) if post is not None else 1.0


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _write(model: Any, place: Path) -> None:
    """Each trainable parameter's part of this rank."""
    import torch

    with place.open("wb") as file:
        for parameter in (p for p in model.parameters() if p.requires_grad):
            own = parameter.detach().to_local().contiguous()
            file.write(own.reshape(-1).view(torch.uint8).numpy().data)


if __name__ == "__main__":
    answer(_main, *sys.argv[1:])
