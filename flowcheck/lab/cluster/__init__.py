"""A virtual cluster on one machine: hosts, a mirroring switch, a checkpoint node.

from flowcheck.lab import cluster
made = cluster.up(cluster.Cluster(hosts=2, mirrors=cluster.parse_mirrors(["p0:both"])))
process = cluster.run_in(made.host_namespace(0), ["python", "train.py"])
cluster.down(made.name)
"""

from flowcheck.lab.cluster.cluster_ownership import reserved
from flowcheck.lab.cluster.cluster_setup import down, up
from flowcheck.lab.cluster.cluster_spec import UPLINK, Cluster, Mirror, parse_mirrors
from flowcheck.lab.cluster.cluster_status import status
from flowcheck.lab.cluster.network_namespaces import command_prefix_in, run_in
from flowcheck.lab.cluster.ring_mirror_coverage import RingCoverage, coverage

__all__ = [
    "UPLINK",
    "Cluster",
    "Mirror",
    "RingCoverage",
    "command_prefix_in",
    "coverage",
    "down",
    "parse_mirrors",
    "reserved",
    "run_in",
    "status",
    "up",
]
