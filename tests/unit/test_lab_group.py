"""The lab's process group: torch's calls on a network inside this process, and its settings."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.loop_ranks import module

from flowcheck.lab.roce_backend import trainer_environment as settings_module
from flowcheck.lab.roce_backend.rank_places import Place

ROOM = "flowcheck.lab.roce_backend."
INTERFACE = {"FLOWCHECK_LAB_INTERFACE": "lo"}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """flowcheck.lab.roce_backend.process_group, imported over the network inside the process."""
    kept = {name: one for name, one in sys.modules.items() if name.startswith("flowcheck._lab")}
    sys.modules["flowcheck._lab"] = module(Path(tmp_path_factory.mktemp("loop")))
    yield importlib.import_module(ROOM + "process_group")
    for name in [name for name in sys.modules if name.startswith(ROOM)]:
        if not name.endswith(("trainer_environment", "rank_places")):
            del sys.modules[name]
    del sys.modules["flowcheck._lab"]
    sys.modules.update(kept)


Body = Callable[[Any, int], None]
Run = Callable[..., None]


@pytest.fixture
def run(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs body(group, rank) on a thread per rank, each with a node of its own."""
    own = threading.local()
    communicator = sys.modules[ROOM + "roce_communicator"]
    monkeypatch.setattr(communicator.EmulatedNic, "get", lambda settings: own.node)

    def on_all(ranks: int, body: Body, *, gpus: int = 1, nics: int = 1, **more: str) -> None:
        settings = settings_module.read_settings(INTERFACE | more)
        store, errors = dist.HashStore(), []

        def one(rank: int) -> None:
            own.node = communicator.EmulatedNic(settings)
            own.node.place = Place(str(rank // gpus), rank % gpus * nics // gpus)
            group = trainer.RoceProcessGroup(settings, store, rank, ranks, timedelta(seconds=20))
            try:
                body(group, rank)
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                group.shutdown()
                communicator.lib.fcl_node_close(own.node.pointer)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
        # Groups of before are torch's objects: whoever frees them on another thread amid all
        # these has been seen to abort.
        gc.collect()
        gc.disable()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=60)
        finally:
            gc.enable()
        assert not errors
        assert not any(thread.is_alive() for thread in threads)

    return on_all


def options(kind: Any, **values: Any) -> Any:
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("ranks", "version"), [(2, "2.23"), (3, "2.19"), (5, "2.21"), (6, "2.29")])
def test_trees_sum_too(run: Run, ranks: int, version: str) -> None:
    """Of every protocol, large and small, in turns with rings."""
    sizes = (3, 1000, 40_000, 300_000)

    def body(group: Any, rank: int) -> None:
        for size in sizes:
            tensor = torch.arange(size, dtype=torch.float32) * (rank + 1)
            group.allreduce([tensor]).wait()
            total = torch.arange(size, dtype=torch.float32) * (ranks * (ranks + 1) // 2)
            assert torch.equal(tensor, total), size
            told = torch.full((size,), float(rank))
            group.broadcast([told]).wait()
            assert not told.any()

    for protocol in ("LL", "LL128", "Simple"):
        more = {"NCCL_PROTO": protocol, "FLOWCHECK_LAB_NCCL": version}
        run(ranks, body, NCCL_ALGO="Tree", **more)
    run(ranks, body, FLOWCHECK_LAB_TREE_BELOW="50000", FLOWCHECK_LAB_NCCL=version)


@pytest.mark.parametrize(
    ("gpus", "nics", "version"), [(2, 2, "2.29"), (3, 1, "2.21"), (2, 1, "2.29"), (4, 4, "2.27")]
)
def test_hosts_of_several_gpus_sum_too(run: Run, gpus: int, nics: int, version: str) -> None:
    """By rings, by NVLS trees where the release has them, and what goes from rank to rank."""
    ranks = 2 * gpus

    def body(group: Any, rank: int) -> None:
        for size in (3, 40_000, 300_000):
            tensor = torch.arange(size, dtype=torch.float32) * (rank + 1)
            group.allreduce([tensor]).wait()
            total = torch.arange(size, dtype=torch.float32) * (ranks * (ranks + 1) // 2)
            assert torch.equal(tensor, total), size
            told = torch.full((size,), float(rank))
            group.broadcast([told], options(dist.BroadcastOptions, rootRank=1)).wait()
            assert told.eq(1).all()
        come = torch.zeros(5)
        receive = group.recv([come], (rank + 1) % ranks)
        group.send([torch.full((5,), float(rank))], (rank - 1) % ranks).wait()
        receive.wait()
        assert come.tolist() == [(rank + 1) % ranks] * 5

    more = {"FLOWCHECK_LAB_NCCL": version}
    run(ranks, body, gpus=gpus, nics=nics, NCCL_ALGO="NVLSTree", **more)
    run(ranks, body, gpus=gpus, nics=nics, FLOWCHECK_LAB_NVLS_FROM="50000", **more)


def test_a_rank_has_the_nic_nearest_to_its_gpu() -> None:
    interfaces = {"FLOWCHECK_LAB_INTERFACE": "eth0,eth1", "FLOWCHECK_LAB_PMTU": "1024"}
    found = []
    for local in range(4):
        told = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "4"}
        read = settings_module.read_settings(interfaces | told)
        found.append((read.interface, read.nic, read.first_interface))
    assert found == [("eth0", 0, "eth0")] * 2 + [("eth1", 1, "eth0")] * 2


def test_reductions_as_torch_asks_for_them(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        tensor = torch.full((10,), float(rank + 1))
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [6.0] * 10
        tensor = torch.full((2, 3, 4, 5), float(rank)).to(memory_format=torch.channels_last)
        most = options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.MAX)
        assert torch.equal(group.allreduce([tensor], most).get_future().wait()[0], tensor)
        assert tensor.eq(2).all()
        flags = torch.tensor([rank == 1, False])
        group.allreduce([flags]).wait()
        assert flags.tolist() == [True, False]
        pairs = torch.full((3,), complex(rank, 1), dtype=torch.complex64)
        group.allreduce([pairs]).wait()
        assert pairs.tolist() == [3 + 3j] * 3
        part = torch.zeros(3)
        group.reduce_scatter_single(part, torch.arange(9.0)).wait()
        assert part.tolist() == [3.0 * (3 * rank + i) for i in range(3)]
        assert group.allreduce_coalesced([]).is_completed()
        assert group.barrier().wait()

    run(3, body)


def test_copies_as_torch_asks_for_them(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        tensor = torch.full((4, 3), rank, dtype=torch.int16)
        group.broadcast([tensor], options(dist.BroadcastOptions, rootRank=1)).wait()
        assert tensor.eq(1).all()
        made = [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
        group.allgather([made], [torch.tensor([rank, 7])]).wait()
        assert [one.tolist() for one in made] == [[0, 7], [1, 7], [2, 7]]
        made = [torch.zeros(n + 1) for n in range(3)]
        group.allgather([made], [torch.full((rank + 1,), float(rank))]).wait()
        assert [one.tolist() for one in made] == [[0], [1, 1], [2, 2, 2]]
        to_two = options(dist.GatherOptions, rootRank=2)
        outputs = [[torch.zeros(2) for _ in range(3)]] if rank == 2 else []
        group.gather(outputs, [torch.full((2,), float(rank))], to_two).wait()
        if rank == 2:
            assert [one[0].item() for one in outputs[0]] == [0, 1, 2]
        inputs = [[torch.full((2,), float(n)) for n in range(3)]] if rank == 0 else []
        part = torch.zeros(2)
        group.scatter([part], inputs, options(dist.ScatterOptions, rootRank=0)).wait()
        assert part.tolist() == [rank, rank]
        rows = torch.zeros(6, 3)
        group.all_to_all_single(rows, torch.full((6, 3), float(rank))).wait()
        assert rows[:, 0].tolist() == [0, 0, 1, 1, 2, 2]

    run(3, body)


def test_a_receive_posted_early_holds_up_nobody(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        come = torch.zeros(5)
        receive = group.recv([come], (rank + 1) % 3)
        group.allreduce([torch.ones(1)]).wait()
        group.send([torch.full((5,), float(rank))], (rank - 1) % 3).wait()
        receive.wait()
        assert come.tolist() == [(rank + 1) % 3] * 5

    run(3, body)


def test_a_hook_may_wait_for_a_collective_inside_a_future(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        first, second = torch.ones(3), torch.ones(3)

        def again(_: Any) -> torch.Tensor:
            made: torch.Tensor = group.allreduce([second]).get_future().wait()[0]
            return made

        assert group.allreduce([first]).get_future().then(again).wait().tolist() == [2] * 3

    run(2, body)


def test_what_nccl_would_not_take_is_refused_before_anything_is_sent(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        with pytest.raises(ValueError, match="contiguous"):
            group.allreduce([torch.zeros(4, 4)[:, :2]])
        with pytest.raises(ValueError, match="contiguous"):
            group.allreduce([torch.zeros(1).expand(4)])
        with pytest.raises(ValueError, match="reduce"):
            group.allreduce([torch.zeros(4, dtype=torch.int16)])
        with pytest.raises(ValueError, match="no reduction"):
            bits = options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.BXOR)
            group.allreduce([torch.zeros(4, dtype=torch.int32)], bits)
        with pytest.raises(ValueError, match="are due"):
            group.all_gather_single(torch.zeros(5), torch.zeros(2))

    run(2, body)


def test_operations_after_shutdown_are_refused(run: Run) -> None:
    def body(group: Any, rank: int) -> None:
        group.allreduce([torch.ones(1)]).wait()
        group.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            group.allreduce([torch.ones(1)])

    run(2, body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_PROTO", "fast"),
        ("NCCL_MAX_NCHANNELS", "0"),
        ("NCCL_BUFFSIZE", "4M"),
        ("NCCL_IB_TC", "256"),
        ("FLOWCHECK_LAB_NCCL", "2.18"),
        ("FLOWCHECK_LAB_NCCL", "3.0"),
        ("FLOWCHECK_LAB_PMTU", "1500"),
        ("FLOWCHECK_LAB_LOSS", "1.0"),
        ("FLOWCHECK_LAB_LOSS", "nan"),
        ("FLOWCHECK_LAB_SEED", "-1"),
        ("FLOWCHECK_LAB_NVLS_FROM", "1M"),
        ("NCCL_ALGO", "NVLS"),
        ("FLOWCHECK_LAB_INTERFACE", "a/b"),
    ],
)
def test_a_value_that_is_not_understood_is_named(name: str, value: str) -> None:
    with pytest.raises(SystemExit, match=f"^flowcheck lab: {name}={value} is not understood"):
        settings_module.read_settings({**INTERFACE, name: value})


def test_settings_follow_nccls_names_and_defaults(tmp_path: Path) -> None:
    plain = settings_module.read_settings(INTERFACE)
    assert (plain.nccl_version, plain.protocol, plain.channels, plain.split_data) == (
        22900,
        settings_module.ANY_PROTOCOL,
        2,
        0,
    )
    old = settings_module.read_settings(
        {**INTERFACE, "FLOWCHECK_LAB_NCCL": "2.19.3", "NCCL_PROTO": "simple", "NCCL_IB_TC": "106"}
    )
    assert (old.nccl_version, old.protocol, old.split_data, old.traffic_class) == (21903, 2, 1, 106)
    for least, most, channels in (("", "1", 1), ("4", "", 4), ("8", "3", 3)):
        limits = {"NCCL_MIN_NCHANNELS": least, "NCCL_MAX_NCHANNELS": most}
        assert settings_module.read_settings({**INTERFACE, **limits}).channels == channels
    for mtu, largest in ((1500, 1024), (4200, 4096), (9000, 4096), (4159, 2048)):
        (tmp_path / "x0").mkdir(exist_ok=True)
        (tmp_path / "x0" / "mtu").write_text(f"{mtu}\n")
        assert settings_module.largest_path_mtu("x0", tmp_path) == largest
    with pytest.raises(SystemExit, match="no such network interface"):
        settings_module.largest_path_mtu("x1", tmp_path)
