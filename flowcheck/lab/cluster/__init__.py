"""A virtual cluster on one machine: hosts, a switch that really mirrors, a checkpoint node.

from flowcheck.lab import cluster

made = cluster.up(cluster.Cluster(hosts=2, mirrors=cluster.parse_mirrors(["p0:both"])))
process = cluster.run_in(made.host_namespace(0), ["python", "train.py"])
cluster.down(made.name)
"""

from flowcheck.lab.cluster.build import down, up
from flowcheck.lab.cluster.coverage import Coverage, coverage
from flowcheck.lab.cluster.held import held
from flowcheck.lab.cluster.namespaces import enter, run_in
from flowcheck.lab.cluster.spec import UPLINK, Cluster, Mirror, parse_mirrors
from flowcheck.lab.cluster.status import status

__all__ = [
    "UPLINK",
    "Cluster",
    "Coverage",
    "Mirror",
    "coverage",
    "down",
    "enter",
    "held",
    "parse_mirrors",
    "run_in",
    "status",
    "up",
]
