"""The benchmark's graphs on a cluster as it is: NCCL's tuning, groups on their nodes, contention, and fusion.

What can be priced anew depends on what there is of a graph:

- captured here: everything. The FX graph is lifted for the cluster, nodes by the kernels that Inductor would make;
- torchtitan's whole steps: everything too. They run node by node as FX graphs, so compute keeps its times;
- problem files and generated steps: collectives, from their operators, bytes and groups, and contention. Compute keeps
  its times: a roofline before fusion, since a problem file does not say which nodes would be one kernel.
"""

from overlap_sched.analysis.whatif import placed_on, priced_on
from overlap_sched.cost.cluster.file import read_cluster
from overlap_sched.problem import Problem

NETWORK = ", true prices"
"""Behind the name of a network."""


def on_cluster(problem: Problem, cluster: str) -> Problem:
    """The problem with its groups placed and its collectives priced for a cluster, and with its contention.

    Raises:
        ClusterError, PlacementError: The cluster is none, or a process group does not fit it.
    """
    found = read_cluster(cluster)
    return priced_on(placed_on(problem, found), found, compute=1.0, contention=True)
