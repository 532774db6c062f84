"""`up` and `down`: everything a cluster is, made in order and removed whatever happened."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flowcheck.errors import FlowCheckError
from flowcheck.lab.cluster import bridge, links, namespaces, ovs, processes, state, sysctls
from flowcheck.lab.cluster.processes import Process
from flowcheck.lab.cluster.spec import Cluster, check_name, prefix


@dataclass(frozen=True, slots=True)
class Removed:
    """What `down` found to remove; nothing at all the second time."""

    namespaces: tuple[str, ...]
    processes: tuple[Process, ...]
    settings: tuple[str, ...]
    """Sentences about the machine's settings."""
    files: bool

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.processes or self.settings or self.files)


def up(cluster: Cluster) -> Cluster:
    """Makes it; what is made when this fails is removed again.

    Raises FlowCheckError: not root, the name is taken, a feature or a program is missing.
    """
    require_root()
    if cluster.switch == "ovs":
        ovs.require()
    with state.locked():
        taken = state.load(cluster.name)
        if taken is not None or namespaces.existing(prefix(cluster.name)):
            was = "is up" if taken is not None and taken.whole else "was left by a crash"
            raise FlowCheckError(
                f"cluster {cluster.name!r} {was}: flowcheck lab down --name {cluster.name}"
            )
        try:
            _make(cluster)
        except BaseException:
            _remove(cluster.name)
            raise
    return cluster


def down(name: str) -> Removed:
    """Removes cluster `name`, also one that a crash left, and every process in it."""
    require_root()
    check_name(name)
    with state.locked():
        return _remove(name)


def require_root() -> None:
    """Raises FlowCheckError for anybody else."""
    if os.geteuid() != 0:
        raise FlowCheckError("the lab makes network namespaces and needs root: run it with sudo")


def _make(cluster: Cluster) -> None:
    """What `down` removes follows from the state file, so it is written first."""
    now = state.State(cluster=cluster)
    state.save(now)

    def born(process: Process) -> None:
        now.processes.append(process)
        state.save(now)

    for namespace in cluster.namespaces:
        namespaces.create(namespace)
    links.connect(cluster)
    if cluster.switch == "ovs":
        # Before the switch opens its sockets: they have the size that is the default then.
        now.said += sysctls.raise_for(cluster.name)
        ovs.build(cluster, state.folder_of(cluster.name), born)
    else:
        bridge.build(cluster)
    now.whole = True
    state.save(now)


def _remove(name: str) -> Removed:
    """Processes, links, namespaces, settings, and the state file last: it may be cut short too."""
    try:
        left = state.load(name)
    except FlowCheckError:
        # Another release's, say: whoever runs in the namespaces is found without it.
        left = None
    there = namespaces.existing(prefix(name))
    ended = processes.end_members(there, left.processes if left else ())
    for namespace in there:
        namespaces.remove(namespace)
    said = sysctls.put_back(name)
    files = state.forget(name)
    return Removed(tuple(there), tuple(ended), tuple(said), files)
