"""`flowcheck plan`: its arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import Json

MIB = 1 << 20
MOST_MIB = 1 << 20
"""MiB. A choice that stops slips of the pen: 2^20 MiB is a tebibyte, more than any bucket."""


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Makes the torch module: file.py:function or pkg.mod:function. Or a job file, "
            "job.toml: the memory it asks for.",
        ),
    ],
    captures: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CAPTURE", help="Held against the plan, with --check."),
    ] = None,
    world: Annotated[int, typer.Option(help="Ranks of the data-parallel ring.")] = 2,
    check: Annotated[
        bool, typer.Option("--check", help="Hold the plan against captures of the job.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An argument of MODEL; repeatable."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Called with the module, gives its loss: a backward pass on the meta device "
            "tells the order in which gradients become ready.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Cast the module: bfloat16, ...")] = None,
    bucket_cap_mb: Annotated[
        float | None, typer.Option(help="As the script gives it to DDP; default: torch's.")
    ] = None,
    first_bucket_mb: Annotated[
        float | None, typer.Option(help="Of the first bucket, where the script changes it.")
    ] = None,
    find_unused_parameters: Annotated[
        bool, typer.Option("--find-unused-parameters", help="As the script gives it to DDP.")
    ] = False,
    static_graph: Annotated[
        bool, typer.Option("--static-graph", help="As the script gives it to DDP.")
    ] = False,
    broadcast_buffers: Annotated[
        bool, typer.Option(help="As the script gives it to DDP; default: torch's.")
    ] = True,
    hook: Annotated[str | None, typer.Option(help="Compression hook: bf16 or fp16.")] = None,
    accumulate: Annotated[int, typer.Option(help="Backward passes per optimizer step.")] = 1,
    sync_each: Annotated[
        bool, typer.Option("--sync-each", help="Accumulation without no_sync().")
    ] = False,
    channels: Annotated[int | None, typer.Option(help="Of the communicator.")] = None,
    protocol: Annotated[str | None, typer.Option(help="LL, LL128 or Simple; NCCL_PROTO.")] = None,
    nccl: Annotated[str | None, typer.Option(help="NCCL's version, such as 2.21.5.")] = None,
    ring_index: Annotated[int, typer.Option(help="Of the rank at the mirrored port.")] = 0,
    gpus: Annotated[
        int, typer.Option(help="Ranks of a node, next to each other in the ring; the port's too.")
    ] = 1,
    pmtu: Annotated[int, typer.Option(help="Path MTU of RoCE.")] = 4096,
    ports: Annotated[int, typer.Option(help="Mirrored ports, for the memory needed.")] = 1,
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim: adamw.")] = None,
    momentum: Annotated[float, typer.Option(help="SGD's.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Tell what a model will put on the wire, before it runs: messages, bytes, memory needed.

    Start-up, iteration 0 and later iterations of DistributedDataParallel, collective by collective,
    with what one mirrored port carries of each. The model is made on torch's meta device: no memory
    for its weights, no GPU. What only the running job decides is listed as assumed.

    With --check the captures are held against it. Exit code 1: a collective differs, and the first
    one is named; 0: none does. Protocol and channels are compared where they are stated.

    Of a job file with [model] factory the memory that its replicas, rings, gradients and readers
    take is told, beside what is free; exit code 1: it does not fit.

    Examples: `flowcheck plan torch.nn:Transformer --world 8 --channels 2`,
    `flowcheck plan net.py:make --set layers=12 --check job.pcapng`
    """
    from flowcheck.config.config_decoding import convert
    from flowcheck.config.optimizer_config import OptimizerConfig
    from flowcheck.config.optimizer_validation import validate_optimizer
    from flowcheck.errors import ConfigError
    from flowcheck.ops.planning import plan_command as verb
    from flowcheck.ops.planning.ddp_collectives import DdpOptions
    from flowcheck.replica.preflight.optimizer_preflight import check_optimizer_name
    from flowcheck.stages.privilege.drop_privileges import for_code

    if model.endswith(".toml"):
        from flowcheck.ops.lifecycle import job_file_memory as plan_job

        if captures or check:
            raise ConfigError("--check", model, "is of a model, not of a job file")
        for_code(job=Path(model))
        raise typer.Exit(plan_job.run(Path(model), as_json=as_json))
    if check != bool(captures):
        given = "without a capture" if check else "not given"
        raise ConfigError("--check", given, "goes with captures to hold the plan against")
    for_code(model, loss, files=captures or ())
    for option, size in (
        ("--bucket-cap-mb", bucket_cap_mb),
        ("--first-bucket-mb", first_bucket_mb),
    ):
        if size is not None and not 0 < size < MOST_MIB:
            raise ConfigError(option, size, f"is more than 0 and less than {MOST_MIB:,} (MiB)")
    values = {"name": optimizer, "learning_rate": 0.0, "momentum": momentum}
    stated = None if optimizer is None else convert(values, OptimizerConfig)
    if stated is not None:
        check_optimizer_name("--optimizer", stated)
        validate_optimizer(stated)
    request = verb.PlanRequest(
        model=model,
        settings=tuple(settings or ()),
        loss=loss,
        dtype=dtype,
        options=DdpOptions(
            cap_bytes=None if bucket_cap_mb is None else int(bucket_cap_mb * MIB),
            first_cap_bytes=None if first_bucket_mb is None else int(first_bucket_mb * MIB),
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            broadcast_buffers=broadcast_buffers,
            hook=hook,
            accumulate=accumulate,
            sync_each=sync_each,
        ),
        world=world,
        channels=channels,
        protocol=protocol,
        nccl=nccl,
        ring_index=ring_index,
        gpus=gpus,
        pmtu=pmtu,
        ports=ports,
        optimizer=stated,
        captures=tuple(captures or ()),
        as_json=as_json,
    )
    raise typer.Exit(verb.run(request))
