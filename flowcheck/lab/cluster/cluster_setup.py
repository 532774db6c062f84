"""`up` and `down`: creates a cluster, and removes all of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import CLUSTER_EXISTS, CLUSTER_LEFT, NEEDS_ROOT
from flowcheck.lab.cluster import (
    cluster_state_file,
    linux_bridge,
    namespace_processes,
    network_namespaces,
    open_vswitch_daemon,
    socket_buffer_sysctls,
    veth_links,
)
from flowcheck.lab.cluster.cluster_spec import Cluster, check_name, prefix
from flowcheck.lab.cluster.namespace_processes import ProcessIdentity


@dataclass(frozen=True, slots=True)
class Removed:
    """What `down` removed; empty if there was nothing."""

    namespaces: tuple[str, ...]
    processes: tuple[ProcessIdentity, ...]
    settings: tuple[str, ...]
    """Sentences about restored settings of the machine."""
    files: bool

    def __bool__(self) -> bool:
        return bool(self.namespaces or self.processes or self.settings or self.files)


def up(cluster: Cluster) -> Cluster:
    """Creates the cluster and returns it; removes everything again if that fails. Raises
    FlowCheckError if this is not root, the name is taken, or a kernel feature or program is
    missing."""
    require_root()
    if cluster.switch == "ovs":
        open_vswitch_daemon.require()
    with cluster_state_file.cluster_command_lock():
        taken = cluster_state_file.load(cluster.name)
        if taken is not None or network_namespaces.existing(prefix(cluster.name)):
            is_up = taken is not None and taken.whole
            raise FlowCheckError((CLUSTER_EXISTS if is_up else CLUSTER_LEFT)(cluster.name))
        try:
            _make(cluster)
        except BaseException:
            _remove(cluster.name)
            raise
    return cluster


def down(name: str) -> Removed:
    """Removes cluster `name` and every process in it, also after a crash. Raises FlowCheckError if
    this is not root, or a process does not end."""
    require_root()
    check_name(name)
    with cluster_state_file.cluster_command_lock():
        return _remove(name)


def require_root() -> None:
    """Raises FlowCheckError for any user but root."""
    if os.geteuid() != 0:
        raise FlowCheckError(NEEDS_ROOT())


def _make(cluster: Cluster) -> None:
    """What `down` removes follows from the state file, so it is written first."""
    now = cluster_state_file.ClusterState(cluster=cluster)
    cluster_state_file.save(now)

    def born(process: ProcessIdentity) -> None:
        now.processes.append(process)
        cluster_state_file.save(now)

    for namespace in cluster.namespaces:
        network_namespaces.create(namespace)
    veth_links.connect(cluster)
    if cluster.switch == "ovs":
        # Before the switch opens its sockets: they have the size that is the default then.
        now.said += socket_buffer_sysctls.raise_sysctls_for(cluster.name)
        open_vswitch_daemon.build(cluster, cluster_state_file.folder_of(cluster.name), born)
    else:
        linux_bridge.build(cluster)
    now.whole = True
    cluster_state_file.save(now)


def _remove(name: str) -> Removed:
    """Processes, links, namespaces, settings, and the state file last: it may be cut short too."""
    try:
        left = cluster_state_file.load(name)
    except FlowCheckError:
        # Another release's, say: whoever runs in the namespaces is found without it.
        left = None
    there = network_namespaces.existing(prefix(name))
    ended = namespace_processes.end_processes_in(there, left.processes if left else ())
    for namespace in there:
        network_namespaces.remove(namespace)
    said = socket_buffer_sysctls.restore_sysctls(name)
    files = cluster_state_file.remove_state_files(name)
    return Removed(tuple(there), tuple(ended), tuple(said), files)
