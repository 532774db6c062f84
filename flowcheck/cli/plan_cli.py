"""`flowcheck plan`: its arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import (
    CastDtype,
    Json,
    ModelArguments,
    NcclProtocol,
    PathMtu,
    World,
)

MIB = 1 << 20
MOST_MIB = 1 << 20
"""MiB. A choice that stops slips of the pen: 2^20 MiB is a tebibyte, more than any bucket."""


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Function that returns the module, file.py:function or pkg.mod:function; or a job "
            "file.",
        ),
    ],
    captures: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CAPTURE", help="With --check: captures of the job, pcap or pcapng."
        ),
    ] = None,
    world: World = 2,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the plan with captures of the job.")
    ] = False,
    settings: ModelArguments = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Function from module to loss, for the order of gradients; default: reverse "
            "registration.",
        ),
    ] = None,
    dtype: CastDtype = None,
    bucket_cap_mb: Annotated[
        float | None, typer.Option(help="DDP's bucket_cap_mb, MiB; default: torch's 25.")
    ] = None,
    first_bucket_mb: Annotated[
        float | None,
        typer.Option(
            help="Size of DDP's first bucket, MiB; default: --bucket-cap-mb, else torch's 1."
        ),
    ] = None,
    find_unused_parameters: Annotated[
        bool,
        typer.Option("--find-unused-parameters", help="DDP runs with find_unused_parameters=True."),
    ] = False,
    static_graph: Annotated[
        bool, typer.Option("--static-graph", help="DDP runs with static_graph=True.")
    ] = False,
    broadcast_buffers: Annotated[
        bool, typer.Option(help="DDP's broadcast_buffers: buffers are sent before each iteration.")
    ] = True,
    hook: Annotated[
        str | None,
        typer.Option(help="DDP's compression hook, bf16 or fp16; default: gradients as they are."),
    ] = None,
    accumulate: Annotated[
        int, typer.Option(help="Gradient accumulation: backward passes per optimizer step.")
    ] = 1,
    sync_each: Annotated[
        bool,
        typer.Option(
            "--sync-each", help="All-reduce after every backward pass (without no_sync())."
        ),
    ] = False,
    channels: Annotated[
        int | None,
        typer.Option(
            help="NCCL channels of the communicator, as NCCL_DEBUG=INFO prints; default 1."
        ),
    ] = None,
    protocol: NcclProtocol = None,
    nccl: Annotated[
        str | None, typer.Option(help="NCCL release of the job, such as 2.21.5; default 2.29.")
    ] = None,
    ring_index: Annotated[
        int,
        typer.Option(
            help="Ring position, from 0, of the rank behind the mirrored port (with --gpus: of the "
            "first rank of that node)."
        ),
    ] = 0,
    gpus: Annotated[
        int, typer.Option(help="Ranks (GPUs) per node; they are neighbours in the ring.")
    ] = 1,
    pmtu: PathMtu = 4096,
    ports: Annotated[
        int, typer.Option(help="Number of mirrored ports, for the memory estimate.")
    ] = 1,
    optimizer: Annotated[
        str | None,
        typer.Option(help="Class of torch.optim, for the memory estimate; default adamw."),
    ] = None,
    momentum: Annotated[
        float,
        typer.Option(help="Momentum of --optimizer sgd: above 0 it needs memory for a buffer."),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Predict the traffic of a DDP model before it runs, and the memory that FlowCheck needs.

    Lists every collective of the start-up, of iteration 0 and of later iterations, and the
    messages and bytes of each on one mirrored port. The model is built on torch's meta device:
    without a GPU and without memory for its weights. What only the running job decides is listed as
    assumed.

    With --check the plan is compared with captures. Exit code 0: all collectives are as planned; 1:
    one differs (the first is printed). Protocol and channels are compared only if they are given.

    For a job file with [model] factory it prints the memory that the job needs and how much is
    free. Exit code 0: it fits; 1: it does not fit.

    Examples: `flowcheck plan torch.nn:Transformer --world 8 --channels 2`,
    `flowcheck plan net.py:make --set layers=12 --check job.pcapng`
    """
    from flowcheck.config.config_decoding import convert
    from flowcheck.config.optimizer_config import OptimizerConfig
    from flowcheck.config.optimizer_validation import validate_optimizer
    from flowcheck.errors import ConfigError
    from flowcheck.findings.catalog.refused_options import (
        BUCKET_SIZE,
        CAPTURES_NEED_CHECK,
        CHECK_NEEDS_CAPTURES,
        CHECK_NEEDS_MODEL,
    )
    from flowcheck.ops.planning import plan_command as verb
    from flowcheck.ops.planning.ddp_collectives import DdpOptions
    from flowcheck.replica.preflight.optimizer_preflight import check_optimizer_name
    from flowcheck.stages.privilege.drop_privileges import drop_for_user_code

    if model.endswith(".toml"):
        from flowcheck.ops.lifecycle import job_file_memory as plan_job

        if captures or check:
            raise ConfigError("--check", model, CHECK_NEEDS_MODEL())
        drop_for_user_code(job=Path(model))
        raise typer.Exit(plan_job.run(Path(model), as_json=as_json))
    if check != bool(captures):
        why = CHECK_NEEDS_CAPTURES() if check else CAPTURES_NEED_CHECK()
        raise ConfigError("--check", "given" if check else "not given", why)
    drop_for_user_code(model, loss, files=captures or ())
    for option, size in (
        ("--bucket-cap-mb", bucket_cap_mb),
        ("--first-bucket-mb", first_bucket_mb),
    ):
        if size is not None and not 0 < size < MOST_MIB:
            raise ConfigError(option, size, BUCKET_SIZE(MOST_MIB))
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
