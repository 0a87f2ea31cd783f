"""The cluster that a job is taken to run on where nobody says: the shipped nodes of its GPU."""

import re
from functools import cache

import torch

from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.cost.cluster.file import read_cluster

NODES = {"A100": "dgx-a100", "H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200", "MI300X": "mi300x"}
"""By what a GPU is called, as a word of its own (a GB200 is in other nodes than a B200)."""
_NO_SWITCH = ("PCIE", "NVL")
"""Words of GPUs that are not on a board with the switches of those nodes."""


def cluster_here() -> Cluster | None:
    """The shipped cluster whose nodes have this process's GPU; ``None``: none has it, or CUDA has not been started.

    CUDA is never started for it: that takes memory on a GPU which the job may not have chosen yet. Where a graph on a
    GPU is compiled it has been.
    """
    return _cluster_of(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else None


@cache
def _cluster_of(gpu: str) -> Cluster | None:
    words = re.findall(r"[A-Za-z0-9]+", gpu)
    if any(word in map(str.upper, words) for word in _NO_SWITCH):
        return None
    return next((read_cluster(name) for word, name in NODES.items() if word in words), None)
