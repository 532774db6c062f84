"""`flowcheck plan`: builds the traffic plan of a model and optionally compares it with
captures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.config import OptimizerConfig, StagingConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.plan_figures import (
    DEFAULT_OPTIMIZER,
    NEWEST_NCCL,
    ONE_CHANNEL,
    ONE_RANK_BEHIND_PORT,
    PROTOCOL_BY_SIZE,
    STAGING_TOO_SMALL,
)
from flowcheck.findings.catalog.refused_settings import ONE_OF, VERSION
from flowcheck.findings.finding import Finding
from flowcheck.ops.planning import plan_vs_captures as plan_check
from flowcheck.ops.planning.ddp_collectives import DdpOptions, DdpTraffic, ddp_traffic
from flowcheck.ops.planning.memory_estimate import MemoryEstimate, estimate_memory
from flowcheck.ops.planning.meta_device_model import MetaModel, load_model
from flowcheck.ops.planning.plan_report import TrafficPlan, as_dict, print_plan
from flowcheck.ops.planning.plan_vs_captures import ExpectedWire
from flowcheck.ops.planning.wire_traffic import LL_BELOW_BYTES, MirroredPort, traffic_of_collective
from flowcheck.optimizer_rules.torch_optimizers import PLAN_DEFAULT, rule_named
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, era_of
from flowcheck.wire.learn import Collective, read_stream


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `flowcheck plan`; None: not given."""

    model: str
    settings: tuple[str, ...]
    loss: str | None
    dtype: str | None
    options: DdpOptions
    world: int
    channels: int | None
    protocol: str | None
    nccl: str | None
    ring_index: int
    gpus: int
    pmtu: int
    ports: int
    optimizer: OptimizerConfig | None
    captures: tuple[Path, ...]
    as_json: bool


def run(request: PlanRequest) -> int:
    """Prints the plan and returns the exit code: 1 if captures were given and differ from the
    plan, else 0. Raises ConfigError where no plan can be made."""
    wire = wire_of(request)
    model = load_model(request.model, request.settings, dtype=request.dtype, loss=request.loss)
    traffic = ddp_traffic(model, request.options)
    found = None
    if request.captures:
        collectives = collectives_of(request.captures)
        order = (
            plan_check.captured_gradient_order(traffic, collectives) if traffic.assumed else None
        )
        if order is not None:
            # How gradients became ready is nothing that the plan stated: the captures tell.
            model = msgspec.structs.replace(model, ready=order)
            traffic = ddp_traffic(model, request.options)
        stated = ExpectedWire(
            ranks=request.world,
            protocol=wire.protocol,
            wire=wire if request.channels is not None else None,
        )
        found = plan_check.check(traffic, stated, collectives)
        found = msgspec.structs.replace(found, order_told=order is not None)
    plan = plan_of(request, model, wire, traffic)
    if request.as_json:
        json.dump(as_dict(plan, found), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_plan(plan, found)
    return int(found is not None and found.difference is not None)


def wire_of(request: PlanRequest) -> MirroredPort:
    """The mirrored port that the options describe. Raises ConfigError that names the invalid
    option."""
    try:
        era = NcclEra.V2_29 if request.nccl is None else era_of(request.nccl)
    except ValueError as error:
        raise ConfigError("--nccl", request.nccl, VERSION(short="2.21", long="2.21.5")) from error
    return MirroredPort(
        ranks=request.world,
        channels=1 if request.channels is None else request.channels,
        protocol=protocol_named(request.protocol),
        era=era,
        ring_index=request.ring_index,
        gpus=request.gpus,
        pmtu_bytes=request.pmtu,
    )


def protocol_named(asked: str | None) -> Protocol | None:
    """The protocol that --protocol names in any case. Raises ConfigError for another name."""
    names = {str(protocol).lower(): protocol for protocol in Protocol}
    if asked is not None and asked.lower() not in names:
        raise ConfigError("--protocol", asked, ONE_OF(tuple(Protocol)))
    return None if asked is None else names[asked.lower()]


def plan_of(
    request: PlanRequest, model: MetaModel, wire: MirroredPort, traffic: DdpTraffic
) -> TrafficPlan:
    """The complete plan: traffic of each collective at the port, memory estimate, assumptions and
    advice."""
    start_up = tuple(traffic_of_collective(one, wire) for one in traffic.start_up)
    first = tuple(tuple(traffic_of_collective(one, wire) for one in part) for part in traffic.first)
    each = tuple(traffic_of_collective(one, wire) for one in traffic.each)
    optimizer = request.optimizer or OptimizerConfig(name=PLAN_DEFAULT, learning_rate=0.0)
    before_proof = [*start_up, *(cost for part in first for cost in part), *each]
    memory = estimate_memory(model, optimizer, before_proof, request.ports)
    return TrafficPlan(
        model=model,
        wire=wire,
        start_up=start_up,
        first=first,
        each=each,
        iterations_per_step=request.options.iterations_per_step,
        memory=memory,
        assumed=(*traffic.assumed, *_assumed(request)),
        advice=_advice(memory),
    )


def _assumed(request: PlanRequest) -> list[Finding]:
    told = [ONE_RANK_BEHIND_PORT()]
    if request.protocol is None:
        told.append(PROTOCOL_BY_SIZE(LL_BELOW_BYTES))
    if request.channels is None:
        told.append(ONE_CHANNEL())
    if request.nccl is None:
        told.append(NEWEST_NCCL())
    if request.optimizer is None:
        told.append(DEFAULT_OPTIMIZER(rule_named(PLAN_DEFAULT).torch_class))
    return told


def _advice(memory: MemoryEstimate) -> tuple[Finding, ...]:
    have, need = StagingConfig().size_bytes, memory.staging_bytes
    if need <= have:
        return ()
    return (STAGING_TOO_SMALL(needed=need, default=have),)


def collectives_of(captures: Sequence[Path]) -> tuple[Collective, ...]:
    """The collectives in the capture files, read together as the mirror points of one job. Raises
    CaptureError for a file that cannot be read."""
    tape = read_capture_files(captures)
    return read_stream(tape.flows, tape.messages).collectives
