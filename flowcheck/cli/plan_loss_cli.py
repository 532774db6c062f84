"""`flowcheck plan-loss`: its arguments and help."""

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
    svg_file,
)


def plan_loss(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Function that returns the module, file.py:function or pkg.mod:function; or a job "
            "file.",
            show_default=False,
        ),
    ] = None,
    settings: ModelArguments = None,
    dtype: CastDtype = None,
    gradient_bytes: Annotated[
        float | None,
        typer.Option(help="Bytes of the gradients that one ring reduces in a step, without MODEL."),
    ] = None,
    element_bytes: Annotated[
        int, typer.Option(help="Bytes of a gradient element, without MODEL: 1, 2, 4 or 8.")
    ] = 4,
    world: World = 2,
    channels: Annotated[
        int, typer.Option(help="NCCL channels of the communicator, as NCCL_DEBUG=INFO prints.")
    ] = 1,
    protocol: NcclProtocol = None,
    pmtu: PathMtu = 4096,
    rings: Annotated[
        int, typer.Option(help="Number of such rings in the job, each mirrored alike.")
    ] = 1,
    links: Annotated[
        int | None,
        typer.Option(
            help="Mirrored links of each ring, or 2 for both directions of a port; default 2."
        ),
    ] = None,
    copies: Annotated[
        int | None, typer.Option(help="Copies of every chunk, 1 to 8, in place of --links.")
    ] = None,
    switch_loss: Annotated[
        float | None,
        typer.Option(help="Probability that the mirror queue drops a copy; default 1e-9."),
    ] = None,
    bit_error_rate: Annotated[
        float, typer.Option(help="Bit error rate of the monitor link, after error correction.")
    ] = 0.0,
    nic_loss: Annotated[
        float, typer.Option(help="Probability that the capture NIC drops a frame.")
    ] = 0.0,
    ring_loss: Annotated[
        float, typer.Option(help="Probability that the ring in memory drops a frame.")
    ] = 0.0,
    burst_packets: Annotated[
        float, typer.Option(help="Mean number of packets lost in a row; 1: independent losses.")
    ] = 1.0,
    step_seconds: Annotated[float, typer.Option(help="Seconds that a training step takes.")] = 1.0,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints of the trainer.")
    ] = None,
    heal: Annotated[
        bool,
        typer.Option(
            "--heal",
            help="Also plan a rule that steps each element by itself: tainted until healed.",
        ),
    ] = False,
    heal_delay: Annotated[
        int, typer.Option(help="Steps until a checkpoint of the trainer has healed, with --heal.")
    ] = 1,
    hook_delay: Annotated[
        int | None,
        typer.Option(
            help="Steps until a hook in the trainer has sent lost ranges, with --heal; default: no "
            "hook."
        ),
    ] = None,
    hook_success: Annotated[
        float, typer.Option(help="Probability that the hook answers, 0 to 1, with --heal.")
    ] = 1.0,
    clip_norm: Annotated[
        bool,
        typer.Option("--clip-norm", help="The trainer clips by the norm of all gradients."),
    ] = False,
    state_bytes: Annotated[
        float, typer.Option(help="Bytes of the replica for each element; three numbers: 12.")
    ] = 12.0,
    line_gbps: Annotated[
        float | None, typer.Option(help="Line rate at which a burst reaches the ring, Gb/s.")
    ] = None,
    drain_gbps: Annotated[
        float | None, typer.Option(help="Rate at which frames leave the ring, Gb/s.")
    ] = None,
    ring_slots: Annotated[
        int | None,
        typer.Option(help="Slots of the ring; default: of the job file, else 65,536."),
    ] = None,
    burst_bytes: Annotated[
        float | None,
        typer.Option(help="Payload bytes that arrive in one burst; default: a step's on one link."),
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option(metavar="N", help="Simulate N steps and days, packet by packet, and compare."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation, 0 or more.")] = 0,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg",
            metavar="FILE",
            callback=svg_file,
            help="Write a drawing: exact steps against loss.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan packet loss: how often another mirror's copy repairs a step, and how often none does.

    A step that no copy repairs stops the replica where its optimizer needs all gradients at once,
    as with clipping by a norm, until the trainer's next checkpoint (--checkpoint-every). With
    --heal the plan also says how long lost elements stay tainted under rules that step each element
    by itself, until a checkpoint or a hook (--hook-delay) heals them. The figures are for the
    packets of the model, or of the given number of bytes, and computed exactly; --simulate checks
    them by drawing packets.

    With rates of the ring it tells whether a burst overflows it. That is a bound, no probability.

    Exit code 0: planned; 1: a burst overflows the ring, or the simulation contradicts the plan; 2:
    an option is refused.

    Examples: `flowcheck plan-loss --gradient-bytes 14e9 --world 24 --links 3 --step-seconds 2`,
    `flowcheck plan-loss net.py:make --world 8 --heal --checkpoint-every 500 --simulate 10000`
    """
    from flowcheck.errors import ConfigError
    from flowcheck.findings.catalog.packet_loss_plan import (
        COPIES_OR_LINKS,
        NEEDED_BY,
        NEEDS_OPTION,
    )
    from flowcheck.findings.catalog.refused_settings import AT_LEAST
    from flowcheck.ops.packet_loss import loss_command as verb
    from flowcheck.ops.packet_loss.copy_loss import HopLosses
    from flowcheck.ops.packet_loss.loss_plan import PROTOTYPE_LOSS, LossSettings
    from flowcheck.ops.packet_loss.replica_odds import Healing
    from flowcheck.ops.packet_loss.step_packets import Coverage
    from flowcheck.ops.planning.plan_command import protocol_named
    from flowcheck.ops.planning.wire_traffic import MirroredPort
    from flowcheck.stages.privilege.drop_privileges import drop_for_user_code

    job = Path(model) if model is not None and model.endswith(".toml") else None
    drop_for_user_code(None if job else model, job=job, picture=svg)
    if links is not None and copies is not None:
        raise ConfigError("--copies", copies, COPIES_OR_LINKS())
    if heal and checkpoint_every is None and hook_delay is None:
        raise ConfigError("--checkpoint-every", None, NEEDED_BY("--heal"))
    if hook_delay is not None and not heal:
        raise ConfigError("--hook-delay", hook_delay, NEEDS_OPTION("--heal"))
    for one, other, value in (
        ("--line-gbps", "--drain-gbps", line_gbps),
        ("--drain-gbps", "--line-gbps", drain_gbps),
    ):
        if value is not None and (line_gbps is None or drain_gbps is None):
            raise ConfigError(one, value, NEEDS_OPTION(other))
    if seed < 0:
        raise ConfigError("--seed", seed, AT_LEAST(0))
    wire = MirroredPort(
        ranks=world, channels=channels, protocol=protocol_named(protocol), pmtu_bytes=pmtu
    )
    stated = verb.ModelOfPlan(
        model=model,
        settings=tuple(settings or ()),
        dtype=dtype,
        gradient_bytes=gradient_bytes,
        element_bytes=element_bytes,
    )
    packets, facts = verb.packets_of(stated, wire)
    burst = verb.BurstOptions(
        ring_slots=ring_slots, line_gbps=line_gbps, drain_gbps=drain_gbps, burst_bytes=burst_bytes
    )
    # What every plan asks is refused where it is wrong, also where nothing is healed.
    states_none = checkpoint_every is None and hook_delay is None
    healing = Healing(
        checkpoint_every=1 if states_none else checkpoint_every,
        heal_delay=heal_delay,
        hook_delay=hook_delay,
        hook_success=hook_success,
    )
    planned = LossSettings(
        hops=HopLosses(
            switch=PROTOTYPE_LOSS if switch_loss is None else switch_loss,
            bit_error_rate=bit_error_rate,
            nic=nic_loss,
            ring=ring_loss,
        ),
        measured=switch_loss is not None,
        burst_packets=burst_packets,
        coverage=Coverage(
            ranks=world,
            links=None if copies is not None else 2 if links is None else links,
            copies=1 if copies is None else copies,
        ),
        rings=rings,
        step_s=step_seconds,
        healing=None if states_none else healing,
        heals=heal,
        state_bytes=state_bytes,
        clip_norm=clip_norm or facts.clip_norm,
        burst=verb.ring_burst(packets, wire, facts, burst),
    )
    request = verb.LossRequest(simulate=simulate, seed=seed, svg=svg, as_json=as_json)
    raise typer.Exit(verb.run(packets, wire, planned, request, of_model=model is not None))
