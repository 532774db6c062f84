"""Random jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.netib.options import Options
from support.netib.shapes import CAPS, MIXED, SMALL, WIDE


def drawn_nodes(seed: int) -> Options:
    """A random job on nodes of several GPUs."""
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    gpus, nodes = one((2, 2), (2, 3), (2, 5), (3, 2), (3, 4), (4, 2), (4, 6), (8, 2), (8, 5))
    return Options(
        seed=seed,
        ranks=gpus * nodes,
        gpus=gpus,
        orders=one(0, 1, 2, 4),
        channels=one(1, 1, 2, 3, 8),
        version=one((2, 19), (2, 21), (2, 23), (2, 26), (2, 30)),
        protocol=one("LL", "LL128", "Simple"),
        mix=one((), ((1024, "LL"),)),
        dtype=one("float32", "float32", "bfloat16"),
        shapes=one(SMALL, ((64, 64), (64,), (127, 64), (64,)), ((300, 120), (120,), (5, 120))),
        steps=3,
        caps_bytes=one((1 << 20, 25 << 20), CAPS, (4000, 20000)),
        buffers=one(0, 0, 64),
        metric_every=one(0, 0, 2),
        rails=one(1, 1, 2),
        qps=one(1, 1, 2),
        random_qpns=rng.random() < 0.1,
        mirrored=(int(rng.integers(nodes)),),
        directions=one("both", "both", "both", "tx", "rx"),
        lose=one(0, 0, 0, 2),
    )


def drawn(seed: int) -> Options:
    """A random job with the habits of its version."""
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    ranks, version = int(rng.integers(2, 17)), one((2, 19), (2, 21), (2, 23), (2, 26), (2, 30))
    shapes = one(SMALL, WIDE, ((11, 13), (11,)), ((300, 120), (120,), (5, 120)))
    inside = rng.random() < 0.1
    return Options(
        seed=seed,
        ranks=ranks,
        channels=int(rng.integers(1, 17)) if rng.random() < 0.5 else int(rng.integers(1, 4)),
        version=version,
        protocol=one("LL", "LL128", "Simple"),
        mix=one((), ((1024, "LL"),), MIXED),
        dtype=one("float32", "bfloat16", "float16"),
        shapes=shapes,
        steps=int(rng.integers(3, 7)),
        caps_bytes=one((1 << 20, 25 << 20), CAPS, (4000, 20000)),
        buffers=one(0, 0, 64),
        counters=one(0, 1),
        metric_every=one(0, 0, 1, 2),
        find_unused=rng.random() < 0.1,
        pipeline_bytes=one(0, 0, 0, 5000, 200_000),
        ipv6=rng.random() < 0.4,
        mtu=one(256, 512, 1024, 2048, 4096),
        qps=one(1, 1, 1, 2, 4),
        split=one(None, None, True),
        adaptive=rng.random() < 0.15,
        random_qpns=rng.random() < 0.2,
        mirrored=(int(rng.integers(ranks)),),
        wrap=one("", "", "", "vlan", "qinq", "erspan2", "erspan3", "vxlan", "gre"),
        storage=one(0, 0, 30),
        cnps=rng.random() < 0.2,
        chatter=rng.random() < 0.3,
        start_step=int(rng.integers(1, 3)) if inside or rng.random() < 0.1 else 0,
        start_inside=inside,
        lose=one(0, 0, 0, 0, 2),
        duplicates=one(0, 0, 5),
        retransmits=one(0, 0, 4),
        tensor_layers=one(0, 0, 2),
        tensor_near=one(False, True),
        metrics_group=one(False, False, True),
        beside_first=one(False, True),
    )
