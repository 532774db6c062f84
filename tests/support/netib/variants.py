"""Random jobs as another program would write them down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support.netib.manners import Manners
from support.netib.options import Options
from support.netib.shapes import MIXED

Shapes = tuple[tuple[int, ...], ...]


def block(width: int) -> Shapes:
    """A transformer's."""
    return (
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    )  # fmt: skip


MODELS: tuple[tuple[Shapes, tuple[int, int]], ...] = (
    (((4, 3), (4,)), (1 << 20, 25 << 20)),
    (((13,), (7, 5), (3,)), (64, 128)),
    (((128, 64), (128,), (128, 128), (128,), (10, 128), (10,)), (1 << 20, 25 << 20)),
    (((128, 64), (128,), (128, 128), (128,), (10, 128), (10,)), (4096, 40000)),
    (((16, 3, 3, 3), (16,), (16,), (32, 16, 3, 3), (32,), (32,), (10, 512), (10,)), (5000, 16384)),
    (((500, 32), *block(32), *block(32), (32,), (32,), (500, 32)), (16384, 65536)),
    (tuple((n * 37 % 90 + 1, 24) for n in range(30)), (500, 2000)),
    (((1000, 100), *block(64), (100, 1000)), (1 << 18, 1 << 18)),
    (((700, 300), (700,), (300, 700), (300,)), (1 << 20, 25 << 20)),
    (((1024,), (2048,), (4096,), (512,)), (8192, 8192)),
)


def varied(seed: int) -> Options:
    """A random job with one program's manners; each is plain in most ways."""
    rng = np.random.default_rng([seed, 5])

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def rarely(value: Any, other: Any = None, chance: float = 0.12) -> Any:
        return value if rng.random() < chance else other

    ranks = one(2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16)
    shapes, caps = one(*MODELS)
    wrap = one("", "", "", "", "", "vlan", "erspan2", "erspan3")
    merged = rng.random() < 0.1
    seen = (int(rng.integers(ranks)),)
    if merged or rng.random() < 0.08:
        seen = tuple(sorted({*seen, int(rng.integers(ranks))}))
    if rng.random() < 0.04:
        seen, merged = tuple(range(min(ranks, 4))), True
    late, ended = rng.random() < 0.12, rng.random() < 0.12
    manners = Manners(
        halving=rng.random() > 0.15,
        ring=one("", "", "", "one"),
        startup=rarely("weights", "ddp", 0.06),
        rebuilt=rng.random() > 0.1,
        values=one("", "", "", "bytes", "sparse", "whole", "same"),
        filler=one("", "", "zero", "zero", "stale"),
        turns=one("", "", "in order"),
        acked=one("", "", "none", "each"),
        granted=one("", "", "first"),
        same_qpns=bool(rarely(True, False)),
        udp=one("", "", "", "any", "one"),
        macs=rarely("router", ""),
        aligned=rng.random() > 0.15,
        storage=one("", "writes", "immediate"),
        tags=rarely("zero", "", 0.08),
        clock=one("", "", "", "even", "coarse", "equal"),
        container=one("", "", "", "nano", "big", "ng"),
        fcs=bool(rarely(True, False)),
        icrc=rarely("zero", ""),
        merged=merged,
        first=float(rng.random() * 0.8) if late else 0.0,
        until=float(rng.random() * 0.6 + 0.4) if ended else 1.0,
    )
    if rng.random() < 0.03:
        manners = replace(manners, startup="", lived=True)
    return Options(
        seed=seed,
        ranks=ranks,
        channels=int(one(1, 1, 2, 2, 3, 4, 8, 16)),
        version=one((2, 19), (2, 21), (2, 23), (2, 30)),
        protocol=one("LL", "LL128", "Simple"),
        mix=one((), ((1024, "LL"),), MIXED, ((4000, "LL"), (40000, "LL128"))),
        dtype=one("float32", "float32", "bfloat16", "float16"),
        shapes=shapes,
        steps=int(one(2, 3, 3, 4, 6)),
        caps_bytes=caps,
        buffers=one(0, 0, 0, 0, 64),
        metric_every=one(0, 0, 0, 1, 2),
        find_unused=rng.random() < 0.05,
        pipeline_bytes=one(0, 0, 0, 5000, 65536, 400_000),
        ipv6=rng.random() < 0.35,
        mtu=one(1024, 1024, 2048, 4096),
        qps=one(1, 1, 1, 1, 2, 4),
        split=one(None, None, True),
        adaptive=rng.random() < 0.12,
        random_qpns=rng.random() < 0.15,
        mirrored=seen,
        directions=one("both", "both", "both", "both", "both", "both", "tx", "rx"),
        wrap=wrap,
        storage=one(0, 0, 20),
        cnps=rng.random() < 0.1,
        chatter=rng.random() < 0.2,
        lose=one(0, 0, 0, 0, 0, 2),
        retransmits=one(0, 0, 0, 0, 4),
        manners=manners,
    )
