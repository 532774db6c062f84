"""Ray, as far as a fleet uses it: which machines there are, and one actor for each chain. The only
file that imports ray."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.fleet_running import (
    NO_RAY,
    NODE_NOT_THERE,
    RAY_FAILED,
    RAY_SILENT,
    SAME_MACHINE,
    TWO_MACHINES,
)
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, encode_fleet
from flowcheck.untrusted_text import printable

RESOURCE = "flowcheck_node_"
"""Custom resource of a machine: `ray start --resources='{"flowcheck_node_NAME": 1}'`."""
SHARE = 0.001
"""Of that resource, which an actor takes: a machine has room for 1,000 chains (Ray counts resources
in units of 0.0001)."""
NAMESPACE = "flowcheck"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TQDM_PATCH_PRINT": "0",
}
"""Environment of this process before ray is imported: it reports to nobody."""
Made = TypeVar("Made")


class RayCluster:
    """A connection; all of it in one thread, each call within a limit."""

    def __init__(self, address: str, limit_s: float) -> None:
        """address: of Ray's head, HOST:PORT, or "auto": the cluster of this machine. Raises
        ConfigError without ray, StateError where no cluster answers."""
        self._limit_s = limit_s
        self._asked: queue.Queue[tuple[Callable[[Any], Any], queue.Queue[Any]] | None]
        self._asked = queue.Queue()
        threading.Thread(target=self._serve, args=(address,), daemon=True).start()
        self._call(lambda ray: None, address=address)

    def close(self) -> None:
        self._asked.put(None)

    def absent(self, state: FleetState) -> dict[str, Finding]:
        """{machine of the fleet: why no chain can be started on it now}. Raises StateError where
        two machines of the fleet are one: copies of a shard would be lost together."""
        found: dict[str, list[str]] = {node: [] for node in state.keepers}
        for one in self._call(lambda ray: ray.nodes()):
            for name in one.get("Resources", {}) if one.get("Alive") else ():
                if (node := name.removeprefix(RESOURCE)) != name and node in found:
                    found[node].append(str(one.get("NodeID")))
        of_machine: dict[str, str] = {}
        for node, machines in found.items():
            if len(machines) > 1:
                raise StateError(TWO_MACHINES(resource=f"{RESOURCE}{node}", count=len(machines)))
            if machines and (other := of_machine.setdefault(machines[0], node)) != node:
                raise StateError(SAME_MACHINE(node=node, other=other))
        return {
            node: NODE_NOT_THERE(node=node, resource=f"{RESOURCE}{node}")
            for node, machines in found.items()
            if not machines
        }

    def keep(self, state: FleetState, chain: FleetChain) -> Any:
        """The actor that keeps a chain: the one that is there, or a new one."""
        return self._call(lambda ray: _actor(ray, state, chain))

    def give(
        self, state: FleetState, actors: Mapping[str, Any], limit_s: float
    ) -> dict[str, bytes | Finding]:
        """Gives the state to the machines of these chains. {chain: what its actor answers within
        the limit, or why there is no answer}"""
        return self._call(lambda ray: _answers(ray, state, actors, limit_s))

    @property
    def asks_for_token(self) -> bool:
        """Whether this process, and so the cluster that admitted it, uses Ray's tokens. Ray sets
        the variable where a token lies at its default place."""
        return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"

    def _call(self, does: Callable[[Any], Made], address: str = "") -> Made:
        answer: queue.Queue[Any] = queue.Queue()
        self._asked.put((does, answer))
        try:
            found = answer.get(timeout=self._limit_s)
        except queue.Empty as error:
            raise StateError(RAY_SILENT(seconds=self._limit_s)) from error
        if isinstance(found, BaseException):
            raise found
        made: Made = found
        return made

    def _serve(self, address: str) -> None:
        """Ray's calls wait without a limit where its head is gone; this thread may."""
        try:
            ray: Any = _connected(address)
        except BaseException as error:
            while (asked := self._asked.get()) is not None:
                asked[1].put(error)
            return
        while (asked := self._asked.get()) is not None:
            does, answer = asked
            try:
                answer.put(does(ray))
            except (StateError, ConfigError) as error:
                answer.put(error)
            except Exception as error:
                answer.put(StateError(RAY_FAILED(_first_line(error))))
        ray.shutdown()


def _connected(address: str) -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise StateError(NO_RAY(_first_line(error))) from error
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except Exception as error:
        raise StateError(RAY_FAILED(_first_line(error))) from error
    return ray


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return printable(lines[0] if lines else type(error).__name__)[:300]


def _name(state: FleetState, chain: FleetChain) -> str:
    return f"{state.name}:{chain.node}:{chain.name}"


def _actor(ray: Any, state: FleetState, chain: FleetChain) -> Any:
    from flowcheck.ops.fleet.chain_actor import ChainActor

    options = {
        "name": _name(state, chain),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 4,
        "num_cpus": 0,
        "resources": {f"{RESOURCE}{chain.node}": SHARE},
    }
    made = ray.remote(ChainActor).options(**options)
    return made.remote(chain.node, chain.name, encode_fleet(state.for_node(chain.node)))


def _answers(
    ray: Any, state: FleetState, actors: Mapping[str, Any], limit_s: float
) -> dict[str, bytes | Finding]:
    nodes = {own.name: own.node for own in state.chains}
    texts = {node: encode_fleet(state.for_node(node)) for node in set(nodes.values())}
    asked = {actor.take.remote(texts[nodes[name]]): name for name, actor in actors.items()}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=limit_s)
    found: dict[str, bytes | Finding] = dict.fromkeys(actors, RAY_SILENT(seconds=limit_s))
    for one in done:
        try:
            found[asked[one]] = ray.get(one)
        except Exception as error:
            found[asked[one]] = RAY_FAILED(_first_line(error))
    return found


def own_actor() -> Any:
    """The handle of the actor that this process is."""
    import ray

    return ray.get_runtime_context().current_actor


def leave_actor() -> None:
    """Called in an actor's method: Ray does not start the actor again."""
    import ray

    ray.actor.exit_actor()
