"""The lab's switch as Open vSwitch in user space: its own database, daemon, mirror and ERSPAN
tunnel. Both daemons run in the switch's namespace and are independent of the distribution's
services; no kernel module is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import (
    OVS_ENDED,
    OVS_FAILED,
    OVS_NO_SCHEMA,
    OVS_NOT_INSTALLED,
    OVS_PORT_NOT_OPEN,
)
from flowcheck.lab.cluster.cluster_spec import BRIDGE, MONITOR, Cluster, port_name
from flowcheck.lab.cluster.namespace_processes import ProcessIdentity, find_process
from flowcheck.lab.cluster.network_namespaces import in_namespace, netlink
from flowcheck.lab.cluster.veth_links import index_of

PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl")
SCHEMAS = (
    Path("/usr/share/openvswitch/vswitch.ovsschema"),
    Path("/usr/local/share/openvswitch/vswitch.ovsschema"),
)
LIMIT_S = 20
"""Seconds that a command to the daemon may take. A choice: a longer limit delays the error, a
shorter one fails on a busy machine."""
TUNNEL = "er0"
TUNNEL_BRIDGE = "br1"
OUTER = ("10.78.0.1", "10.78.0.2")
"""Source and destination address of ERSPAN's outer header: the switch and the checkpoint node."""
SESSION = 1
"""Session id and index of the ERSPAN tunnel. A choice: it is the cluster's only tunnel."""


class LabOpenVSwitch:
    """The Open vSwitch daemons whose files are in `folder`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._database = f"unix:{folder}/db.sock"

    def start(self, born: Callable[[ProcessIdentity], None]) -> None:
        """Starts the daemons, the database first. born: called with each process."""
        folder = self._folder
        folder.mkdir(exist_ok=True)
        self.run("ovsdb-tool", "create", f"{folder}/conf.db", str(_schema()))
        self._daemon("ovsdb-server", f"{folder}/conf.db", f"--remote=p{self._database}", born=born)
        self.configure("--no-wait", "init")
        self._daemon("ovs-vswitchd", self._database, "--disable-system", born=born)

    def configure(self, *words: str) -> str:
        """Runs ovs-vsctl; returns when the daemon has applied the change, unless `words` has
        --no-wait. Raises FlowCheckError."""
        return self.run("ovs-vsctl", f"--db={self._database}", f"--timeout={LIMIT_S}", *words)

    def appctl(self, *words: str) -> str:
        """Runs ovs-appctl for ovs-vswitchd and returns its output. Raises FlowCheckError."""
        target = f"--target={self._folder}/ovs-vswitchd.ctl"
        return self.run("ovs-appctl", target, f"--timeout={LIMIT_S}", *words)

    def run(self, *command: str) -> str:
        """Runs a command and returns its standard output. Raises FlowCheckError with the program's
        message."""
        where = str(self._folder)
        files = {"OVS_RUNDIR": where, "OVS_LOGDIR": where, "OVS_DBDIR": where}
        with in_namespace(self._cluster.switch_namespace):
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=2 * LIMIT_S,
                env={**os.environ, **files},
            )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            what = OVS_FAILED(program=command[0], code=done.returncode, said=said)
            raise FlowCheckError(what)
        return done.stdout

    def _daemon(self, program: str, *words: str, born: Callable[[ProcessIdentity], None]) -> None:
        """Detached when it serves; what it says later is in its log."""
        pid_file = self._folder / f"{program}.pid"
        self.run(
            program,
            *words,
            "--detach",
            f"--pidfile={pid_file}",
            f"--log-file={self._folder}/{program}.log",
            f"--unixctl={self._folder}/{program}.ctl",
        )
        process = find_process(int(pid_file.read_text()))
        if process is None:
            raise FlowCheckError(OVS_ENDED(program=program, log=self._folder / f"{program}.log"))
        born(process)


def require() -> None:
    """Raises FlowCheckError if Open vSwitch is not installed."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise FlowCheckError(OVS_NOT_INSTALLED(missing))
    _schema()


def build(cluster: Cluster, folder: Path, born: Callable[[ProcessIdentity], None]) -> None:
    """Builds the switch: daemons, bridge, ports, one static address per port, mirror. The links
    must exist. born: called with each started process."""
    switch = LabOpenVSwitch(cluster, folder)
    switch.start(born)
    _bridge(switch, BRIDGE, [port_name(port) for port in range(cluster.ports)])
    if cluster.erspan:
        _tunnel(switch, cluster)
    else:
        switch.configure("add-port", BRIDGE, MONITOR)
    for port in range(cluster.ports):
        switch.appctl("fdb/add", BRIDGE, port_name(port), "0", cluster.mac(port))
    _mirror(switch, cluster, TUNNEL if cluster.erspan else MONITOR)
    _check(switch)


def _bridge(switch: LabOpenVSwitch, name: str, ports: list[str]) -> None:
    words = ["add-br", name, "--", "set", "bridge", name, "datapath_type=netdev"]
    words += ["stp_enable=false", "rstp_enable=false", "mcast_snooping_enable=false"]
    for port in ports:
        words += ["--", "add-port", name, port]
    switch.configure(*words)


def _tunnel(switch: LabOpenVSwitch, cluster: Cluster) -> None:
    """ERSPAN type II to the checkpoint node over a bridge of its own, with no ARP on the way."""
    _bridge(switch, TUNNEL_BRIDGE, [MONITOR])
    with netlink(cluster.switch_namespace) as route:
        own = index_of(route, TUNNEL_BRIDGE)
        route.link("set", index=own, mtu=cluster.monitor_mtu)
        route.addr("add", index=own, address=OUTER[0], prefixlen=24)
        route.link("set", index=own, state="up")
    switch.appctl("fdb/add", TUNNEL_BRIDGE, MONITOR, "0", cluster.checkpoint_mac)
    options = f"options:local_ip={OUTER[0]} options:remote_ip={OUTER[1]} options:key={SESSION}"
    options += f" options:erspan_ver=1 options:erspan_idx={SESSION}"
    words = ["add-port", BRIDGE, TUNNEL, "--", "set", "interface", TUNNEL, "type=erspan"]
    switch.configure(*words, *options.split())
    # The switch looks its routes up when the kernel tells it of a change, which is later than now.
    switch.appctl("ovs/route/add", f"{OUTER[1]}/32", TUNNEL_BRIDGE)
    switch.appctl("tnl/neigh/set", TUNNEL_BRIDGE, OUTER[1], cluster.checkpoint_mac)


def _mirror(switch: LabOpenVSwitch, cluster: Cluster, output: str) -> None:
    """One mirror for all: two with one output port would copy a frame once all the same."""
    words = ["--", "--id=@out", "get", "port", output]
    ports = sorted({mirror.port for mirror in cluster.mirrors})
    for port in ports:
        words += ["--", f"--id=@p{port}", "get", "port", port_name(port)]
    words += ["--", "--id=@m", "create", "mirror", "name=m0", "output-port=@out"]
    for direction, column in (("rx", "select-src-port"), ("tx", "select-dst-port")):
        chosen = [f"@p{m.port}" for m in cluster.mirrors if m.direction == direction]
        if chosen:
            words.append(f"{column}={','.join(chosen)}")
    switch.configure(*words, "--", "set", "bridge", BRIDGE, "mirrors=@m")


def _check(switch: LabOpenVSwitch) -> None:
    """ovs-vsctl is content with ports that the daemon could not open."""
    lines = switch.configure(
        "--format=csv", "--no-headings", "--columns=name,ofport,error", "list", "interface"
    ).splitlines()
    for line in lines:
        name, number, error = line.split(",", 2)
        if not number.strip('"').isdigit():
            raise FlowCheckError(OVS_PORT_NOT_OPEN(port=name, error=error))


def _schema() -> Path:
    for path in SCHEMAS:
        if path.is_file():
            return path
    raise FlowCheckError(OVS_NO_SCHEMA(SCHEMAS[0]))
