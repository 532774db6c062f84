"""Jobs of many shapes."""

from __future__ import annotations

from support.netib.manners import Manners
from support.netib.options import Options

SMALL = ((96, 40), (96,), (30, 96), (30,), (7, 30))
WIDE = ((256, 256), (256,), (90, 256), (90,))
TALL = ((300, 300), (72,), (10, 300), (10,))
"""A chunk is of so many elements that where its slices part depends on the type."""
MIXED = ((1024, "LL"), (12000, "LL128"))
CAPS = (12000, 12000)

CASES: dict[str, Options] = {
    "r2-ll-219": Options(shapes=SMALL),
    "r2-ll-219-channels2": Options(shapes=SMALL, channels=2),
    "r3-ll128-219": Options(ranks=3, protocol="LL128", shapes=SMALL, channels=2),
    "r4-simple-219": Options(ranks=4, protocol="Simple", shapes=WIDE, channels=4, mtu=4096),
    "r4-simple-221": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=4, version=(2, 21), mtu=4096
    ),
    "r8-ll128-221-bf16": Options(
        ranks=8, protocol="LL128", shapes=WIDE, channels=8, version=(2, 21), dtype="bfloat16"
    ),
    "r5-ll-223-fp16": Options(
        ranks=5, shapes=SMALL, channels=3, version=(2, 23), dtype="float16"
    ),
    "r8-mixed-223-bf16": Options(
        ranks=8, protocol="Simple", mix=MIXED, shapes=WIDE, channels=8, version=(2, 23),
        dtype="bfloat16", caps_bytes=CAPS, mtu=2048,
    ),
    "r3-mixed-226": Options(
        ranks=3, protocol="Simple", mix=MIXED, shapes=SMALL, channels=2, version=(2, 26),
        caps_bytes=(6000, 6000),
    ),
    "r16-simple-230": Options(
        ranks=16, protocol="Simple", shapes=WIDE, channels=16, version=(2, 30), mtu=4096, steps=3
    ),
    "r2-simple-230-bf16-slices": Options(
        protocol="Simple", shapes=TALL, version=(2, 30), dtype="bfloat16", mtu=4096, steps=3
    ),
    "r2-simple-230-fp64-slices": Options(
        protocol="Simple", shapes=TALL, version=(2, 30), dtype="float64", mtu=4096, steps=3
    ),
    "r2-simple-230-fp16-hook": Options(
        protocol="Simple", shapes=TALL, version=(2, 30), compress="float16", mtu=4096
    ),
    "r3-mixed-226-bf16-hook": Options(
        ranks=3, protocol="Simple", mix=MIXED, shapes=SMALL, channels=2, version=(2, 26),
        caps_bytes=(6000, 6000), compress="bfloat16",
    ),
    "r16-ll-230-bf16": Options(
        ranks=16, shapes=SMALL, channels=16, version=(2, 30), dtype="bfloat16", steps=3
    ),
    "r4-ll128-230-ipv6-vlan": Options(
        ranks=4, protocol="LL128", shapes=WIDE, channels=2, version=(2, 30), ipv6=True, wrap="vlan"
    ),
    "r2-simple-230-erspan2": Options(
        protocol="Simple", shapes=WIDE, channels=2, version=(2, 30), wrap="erspan2"
    ),
    "r2-ll-221-erspan3-ipv6": Options(
        shapes=SMALL, channels=2, version=(2, 21), wrap="erspan3", ipv6=True
    ),
    "r2-ll-qinq": Options(shapes=SMALL, wrap="qinq"),
    "r2-ll-vxlan": Options(shapes=SMALL, wrap="vxlan"),
    "r2-ll-gre": Options(shapes=SMALL, wrap="gre"),
    "r4-simple-230-qps4": Options(
        ranks=4, protocol="Simple", shapes=SMALL, channels=2, version=(2, 30), qps=4, steps=2
    ),
    "r4-simple-219-qps2-split": Options(
        ranks=4, protocol="Simple", shapes=SMALL, channels=2, qps=2, steps=2
    ),
    "r4-ll128-223-qps2-split": Options(
        ranks=4, protocol="LL128", shapes=SMALL, channels=2, version=(2, 23), qps=2, split=True,
        steps=2,
    ),
    "r4-ll-221-qps2": Options(ranks=4, shapes=SMALL, version=(2, 21), qps=2, steps=2),
    "r4-simple-230-adaptive": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=2, version=(2, 30), adaptive=True
    ),
    "r4-mixed-223-pipeline-storage": Options(
        ranks=4, protocol="Simple", mix=MIXED, shapes=WIDE, channels=4, version=(2, 23),
        pipeline_bytes=40000, storage=40, chatter=True, cnps=True,
    ),
    "r4-simple-230-random-qpns": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=8, version=(2, 30), random_qpns=True,
        mtu=4096,
    ),
    "r4-ll128-223-buffers-metric": Options(
        ranks=4, protocol="LL128", mix=((1024, "LL"),), shapes=SMALL, channels=2, version=(2, 23),
        buffers=96, counters=2, metric_every=2,
    ),
    "r3-ll-230-find-unused": Options(
        ranks=3, shapes=SMALL, channels=2, version=(2, 30), find_unused=True,
        caps_bytes=(6000, 6000),
    ),
    "r4-simple-230-from-step-2": Options(
        ranks=4, protocol="Simple", shapes=SMALL, channels=1, version=(2, 30), steps=5, start_step=2
    ),
    "r2-ll-219-from-step-2": Options(steps=6, start_step=2),
    "r2-ll-219-from-inside-step-2": Options(
        shapes=SMALL, channels=2, steps=6, start_step=2, start_inside=True
    ),
    "r4-ll128-223-from-inside-step-2": Options(
        ranks=4, protocol="LL128", shapes=SMALL, channels=2, version=(2, 23), steps=5,
        start_step=2, start_inside=True,
    ),
    "r3-two-mirrors": Options(
        ranks=3, protocol="LL128", version=(2, 23), mirrored=(0, 1), steps=2
    ),
    "r4-two-mirrors-ll": Options(ranks=4, version=(2, 23), mirrored=(0, 1)),
    "r2-ll128-230-metric": Options(version=(2, 30), protocol="LL128", metric_every=3),
    "r4-ll128-230-two-buckets-fp16": Options(
        ranks=4, version=(2, 30), protocol="LL128", mix=((1024, "LL"),),
        shapes=((3840,), (3216,)), caps_bytes=(4000, 20000), steps=2, dtype="float16",
    ),
    "r4-ll128-223-find-unused": Options(
        ranks=4, version=(2, 23), protocol="LL128", mix=((1024, "LL"),), find_unused=True,
        caps_bytes=(4000, 20000), shapes=((96, 120), (120,), (5, 120)), steps=2,
    ),
    "r3-ll-226-odd-buffers": Options(
        ranks=3, version=(2, 26), shapes=((11, 13), (11,)), dtype="float16", buffers=64,
        mirrored=(1,), steps=3,
    ),
    "r4-rails": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=4, version=(2, 30), rails=2, steps=2
    ),
    "r2-rails": Options(shapes=SMALL, channels=2, version=(2, 30), rails=2, steps=2),
    "r4-rank2-tx": Options(
        ranks=4, protocol="LL128", shapes=WIDE, channels=2, version=(2, 23), mirrored=(2,),
        directions="tx",
    ),
    "r3-rank1-rx": Options(
        ranks=3, shapes=SMALL, channels=2, version=(2, 30), mirrored=(1,), directions="rx"
    ),
    "r8-nodes2-ll-226-buffers": Options(
        ranks=8, gpus=4, shapes=SMALL, version=(2, 26), buffers=96, mirrored=(1,), steps=3
    ),
    "r6-nodes3-ll128-221-rails": Options(
        ranks=6, gpus=2, orders=2, shapes=SMALL, version=(2, 21), channels=2, rails=2,
        protocol="LL128", mirrored=(2,), steps=3,
    ),
    "r2-ll-230-tensor": Options(shapes=SMALL, version=(2, 30), tensor_layers=2),
    "r4-simple-223-tensor-near-first": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=2, version=(2, 23), tensor_layers=2,
        tensor_near=True, beside_first=True, mirrored=(1,), steps=3,
    ),
    "r2-simple-230-tensor-near-pipeline": Options(
        protocol="Simple", shapes=SMALL, channels=2, version=(2, 30), tensor_layers=2,
        tensor_near=True, pipeline_bytes=5000, steps=3,
    ),
    "r3-ll-221-metrics-group": Options(
        ranks=3, shapes=SMALL, channels=2, version=(2, 21), metrics_group=True, mirrored=(1,)
    ),
    "r2-ll-219-metrics-group-first": Options(
        shapes=SMALL, channels=2, metrics_group=True, beside_first=True
    ),
    "r2-ll-219-metrics-as-large": Options(
        shapes=((11, 13), (11,)), dtype="bfloat16", steps=6, metrics_group=True, tensor_near=True,
        beside_first=True,
    ),
    "r3-ll128-230-metrics-group-2qps": Options(
        ranks=3, protocol="LL128", shapes=WIDE, channels=3, version=(2, 30), qps=2, steps=4,
        metrics_group=True, buffers=64,
    ),
    "r2-ll128-226-three-communicators": Options(
        protocol="LL128", mix=((1024, "LL"),), shapes=SMALL, channels=6, version=(2, 26), qps=2,
        caps_bytes=(4000, 20000), tensor_layers=2, tensor_near=True, metrics_group=True,
        beside_first=True, counters=1, steps=4,
    ),
    "r4-ll-226-all-beside": Options(
        ranks=4, shapes=SMALL, channels=3, version=(2, 26), metrics_group=True, tensor_layers=3,
        pipeline_bytes=5000, steps=3, mirrored=(2,),
    ),
    "r2-ll-230-tensor-near-random-qpns": Options(
        shapes=SMALL, version=(2, 30), tensor_layers=2, tensor_near=True, random_qpns=True
    ),
    "r2-ll-230-sharded": Options(shapes=SMALL, version=(2, 30), channels=2, sharded=True),
    "r4-simple-226-sharded-bf16": Options(
        ranks=4, protocol="Simple", shapes=WIDE, version=(2, 26), channels=2, sharded=True,
        dtype="bfloat16", mirrored=(1,),
    ),
    "r3-ll128-223-sharded": Options(
        ranks=3, protocol="LL128", shapes=SMALL, version=(2, 23), sharded=True, mirrored=(2,),
    ),
    "r3-ll-223-sharded": Options(
        ranks=3, shapes=SMALL, version=(2, 23), sharded=True, mirrored=(2,)
    ),
    "r2-ll-223-early": Options(shapes=SMALL, version=(2, 23), habit="early"),
    "r4-ll128-230-early": Options(
        ranks=4, protocol="LL128", shapes=SMALL, version=(2, 30), channels=2, habit="early",
        mirrored=(1,), steps=3,
    ),
    "r2-simple-223-zero": Options(
        shapes=SMALL, protocol="Simple", version=(2, 23), habit="zero", steps=3
    ),
    "r4-ll-230-zero": Options(
        ranks=4, shapes=SMALL, version=(2, 30), channels=2, habit="zero", mirrored=(1,), steps=3
    ),
    "r4-simple-230-loss": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=2, version=(2, 30), lose=3, mirrored=(1,)
    ),
    "r3-ll-219-loss-duplicates": Options(
        ranks=3, shapes=SMALL, channels=2, lose=2, duplicates=9, retransmits=5, mirrored=(1,)
    ),
    "r3-ll-230-no-check-sums": Options(
        ranks=3, shapes=SMALL, version=(2, 30), manners=Manners(icrc="zero")
    ),
    "r3-ll-223-storage-with-immediates": Options(
        ranks=3, shapes=SMALL, version=(2, 23), storage=20, manners=Manners(storage="immediate")
    ),
    "r4-simple-230-random-qpns-in-order": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=4, version=(2, 30), random_qpns=True,
        mtu=4096, mirrored=(1,), manners=Manners(turns="in order", granted="first"), steps=3,
    ),
    "r2-ll-223-cut-off": Options(
        shapes=((13,), (7, 5), (3,)), version=(2, 23), caps_bytes=(64, 128), steps=3,
        manners=Manners(until=0.8),
    ),
    "r4-simple-223-cut-from-anywhere": Options(
        ranks=4, protocol="Simple", shapes=WIDE, channels=2, version=(2, 23), mirrored=(1,),
        caps_bytes=CAPS, steps=5, manners=Manners(first=0.45),
    ),
    "r4-ll128-230-retransmits": Options(
        ranks=4, protocol="LL128", shapes=WIDE, channels=2, version=(2, 30), duplicates=20,
        retransmits=8,
    ),
    "r12-ll128-230-small-hook": Options(
        ranks=12, protocol="LL128", shapes=((27, 27), (27,), (26, 30), (26,)), version=(2, 30),
        compress="bfloat16", caps_bytes=(1 << 20, 3200), mtu=4096, steps=2, mirrored=(1,),
    ),
    "r6-ll128-226-ring-order": Options(
        seed=5, ranks=6, protocol="LL128", shapes=((60, 40), (60,), (50, 60)), channels=5,
        version=(2, 26), mtu=4096, steps=2, mirrored=(5,), manners=Manners(ring="one"),
    ),
}  # fmt: skip
