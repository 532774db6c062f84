"""A schedule from its seed alone."""

from __future__ import annotations

import random

from support.faults.schedule import (
    AS_IT_STARTS,
    DOUBTS,
    LOSSES,
    Damage,
    FrameFault,
    FrameKind,
    Job,
    ProcessFault,
    Room,
    Schedule,
    Stage,
    Torn,
)

SHAPES = (
    ((64, 100), (64,), (10, 64), (10,)),
    ((40, 40), (40,), (27, 40), (27,)),
    ((11, 13), (11,), (90, 7), (5, 5)),
    ((120, 64), (120,), (30, 120), (30,)),
    ((33, 33), (33,), (33, 17)),
)
HARMLESS: tuple[FrameKind, ...] = (
    *("repeat", "repeat", "reorder", "reorder", "delay", "delay", "strangers", "strangers"),
    *("acknowledgements", "sends", "clock back", "clock forth", "clock stands"),
)
FILES = (
    *("learned/job.json", "learned/weights.bin", "learned/*", "steps.jsonl", "events.jsonl"),
    *("config.json", "trace", "beat.json", "out/*/manifest.json", "out/*/model.safetensors"),
    *("out/*/*", "memory/*", "pids/*"),
)
DAMAGES: tuple[Damage, ...] = ("truncate", "truncate", "flip", "flip", "empty", "remove", "append")


def drawn(seed: int) -> Schedule:
    """The same for a seed on every machine."""
    dice = random.Random(seed)
    job = _job(dice)
    flavour = dice.choice(("frames", "frames", "processes", "both", "both", "room", "lives"))
    frames: tuple[FrameFault, ...] = ()
    processes: tuple[ProcessFault, ...] = ()
    torn: tuple[Torn, ...] = ()
    room = _room(dice, tight=flavour == "room")
    if flavour in ("frames", "both"):
        frames = frame_faults(dice)
    if flavour in ("processes", "both"):
        processes = _processes(dice, dice.randint(1, 6), len(job.mirrored))
    if flavour == "room" and dice.random() < 0.5:
        frames = frame_faults(dice)[:1]
    if flavour == "room" and dice.random() < 0.5:
        processes = _processes(dice, dice.randint(1, 3), len(job.mirrored))
    if flavour == "lives":
        processes = (*_processes(dice, dice.randint(0, 2), len(job.mirrored)), _last_one(dice))
        torn = tuple(_torn(dice) for _ in range(dice.choice((0, 1, 1, 2))))
        if dice.random() < 0.3:
            frames = frame_faults(dice)[:1]
    return Schedule(
        seed=seed, job=job, room=room, frames=frames, processes=processes, torn=torn,
        again=flavour == "lives" or dice.random() < 0.05,
    )  # fmt: skip


def _job(dice: random.Random) -> Job:
    ranks = dice.choice((2, 2, 2, 3, 4))
    protocol = dice.choice(("LL", "LL", "Simple", "LL128"))
    return Job(
        seed=dice.randrange(1 << 30),
        ranks=ranks,
        channels=dice.choice((1, 1, 2)),
        qps=dice.choice((1, 1, 2)),
        protocol=protocol,  # type: ignore[arg-type]
        version=dice.choice(((2, 19), (2, 21), (2, 23), (2, 26), (2, 30))),
        shapes=dice.choice(SHAPES),
        caps_bytes=dice.choice(((1 << 20, 25 << 20), (4000, 20000), (1000, 6000))),
        steps=dice.randint(3, 6),
        mtu=dice.choice((256, 512, 1024, 1024)),
        ipv6=dice.random() < 0.3,
        adaptive=dice.random() < 0.1,
        metric_every=dice.choice((0, 0, 0, 2)),
        retransmits=dice.choice((0, 0, 4)),
        mirrored=dice.choice(((0,), (0,), (0,), (0, 1))),
        directions=dice.choice(("both",) * 12 + ("tx", "rx")),  # type: ignore[arg-type]
        wrap=dice.choice(("", "", "", "vlan", "erspan2", "vxlan")),
        optimizer=dice.choice(("sgd", "adam", "adamw", "adamw")),  # type: ignore[arg-type]
    )


def _room(dice: random.Random, *, tight: bool) -> Room:
    slots = dice.choice((16, 32, 64, 256, 1024))
    most = min(slots, dice.choice((1, 3, 16, 64, 4096)))
    spans = (most, dice.choice((most, 5, 4096)), dice.choice((most, 7, 4096)))
    if not tight:
        return Room(slots=slots, spans=spans)
    which = dice.choice(("staging", "run", "run", "out", "memory", "slot"))
    return Room(
        slots=dice.choice((2, 4, 8, slots)),
        slot_bytes=dice.choice((512, 1024)) if which == "slot" else 4352,
        staging_bytes=1 << 20 if which == "staging" else 8 << 20,
        run_kib=dice.choice((16, 48, 64, 96, 128, 192, 256)) if which == "run" else 0,
        out_kib=dice.choice((16, 64, 128, 256)) if which == "out" else 0,
        memory_mib=dice.choice((8, 16, 24, 40, 64, 80, 96)) if which == "memory" else 0,
        spans=spans,
    )


def frame_faults(dice: random.Random, files: int = 2) -> tuple[FrameFault, ...]:
    mood = dice.choice(("harmless", "harmless", "losses", "doubts", "all"))
    kinds = {
        "harmless": HARMLESS,
        "losses": (*LOSSES, *HARMLESS),
        "doubts": (*DOUBTS, *HARMLESS),
        "all": (*LOSSES, *DOUBTS, *HARMLESS),
    }[mood]
    found = [
        _frame(dice, files, dice.choice(kinds)) for _ in range(dice.choice((1, 1, 2, 2, 3, 4)))
    ]
    if mood in ("losses", "doubts"):
        found[0] = _frame(dice, files, dice.choice(LOSSES if mood == "losses" else DOUBTS))
    return tuple(found)


def _frame(dice: random.Random, files: int, kind: FrameKind) -> FrameFault:
    count, reach = 1, 0
    if kind in ("lose", "lose firsts", "damage", "shorten"):
        count = dice.choice((1, 1, 2, 5, 30))
    elif kind in ("repeat", "differ", "delay"):
        count, reach = dice.choice((1, 3, 10, 40)), dice.choice((1, 2, 5, 16, 60))
    elif kind == "reorder":
        reach = dice.choice((2, 3, 5, 7, 16, 40))
    elif kind in ("strangers", "sends", "forge owner"):
        count = dice.choice((1, 3, 12, 60))
    elif kind == "acknowledgements":
        count = dice.choice((5, 100, 1000, 9000))
    elif kind in ("forge old", "forge ahead"):
        count = dice.choice((1, 1, 2, 10, 50))
    elif kind.startswith("clock"):
        reach = dice.choice((1, 60, 3600, 86400 * 400))
    at = round(dice.random(), 3)
    if kind in ("cut head", "cut tail"):
        at = round(dice.choice((dice.uniform(0, 0.1), dice.random())), 3)
        at = 1 - at if kind == "cut tail" else at
    return FrameFault(
        kind=kind, at=at, count=count, reach=reach, file=dice.randrange(files),
        seed=dice.randrange(1 << 30),
    )  # fmt: skip


def _processes(dice: random.Random, count: int, rings: int) -> tuple[ProcessFault, ...]:
    stages: tuple[Stage, ...] = (
        *("capture", "parse", "parse", "extract", "extract", "extract", "extract"),
        *("update", "update"),
    )
    found = [_process(dice, dice.choice(stages), rings) for _ in range(count)]
    if dice.random() < 0.06:
        found.append(_last_one(dice))
    return tuple(sorted(found, key=lambda fault: fault.at))


def _process(dice: random.Random, stage: Stage, rings: int) -> ProcessFault:
    stops = dice.random() < 0.25
    at = round(dice.choice((dice.random(), dice.random(), dice.random(), AS_IT_STARTS)), 3)
    if stage == "update" and dice.random() < 0.2:
        at = 1.5
    longest_us = dice.choice((0, 30, 100, 300, 3000, 60000))
    return ProcessFault(
        stage=stage,
        number=dice.randrange(rings),
        action="stop" if stops else "kill",
        at=at,
        after_us=dice.randint(0, longest_us),
        stands_ms=dice.choice((1, 20, 200)) if stops else 0,
    )


def _last_one(dice: random.Random) -> ProcessFault:
    """Ends the whole chain."""
    at = dice.choice((AS_IT_STARTS, dice.random(), dice.random(), 1.0, 1.5, 1.5))
    return ProcessFault(
        stage="supervisor", action="kill", at=round(at, 3),
        after_us=dice.choice((0, dice.randint(0, 2000), dice.randint(0, 300_000))),
    )  # fmt: skip


def _torn(dice: random.Random) -> Torn:
    return Torn(file=dice.choice(FILES), how=dice.choice(DAMAGES), at=round(dice.random(), 3))
