"""In what ways a step is run: modes of torch, each as torch has it and with our pass."""

PLAIN = ("eager", "default", "dynamic", "max-autotune")
"""``dynamic``: ``dynamic=True``. ``max-autotune``: without CUDA graphs, which need a GPU."""
OURS = ("ours", "memory")
"""Our pass with its defaults, and with ``base="memory"``; where torch runs eagerly, as ``backend="overlap_sched"``."""
GRAPHS = {"reduce-overhead": "default", "dynamic, CUDA graphs": "dynamic", "max-autotune": "max-autotune"}
"""Modes with CUDA graphs: from the allocations of which mode that runs here their pool is predicted."""
STEPS = ("partitioned", "not donated")
"""On the way from eager to default: the partitioned graph, operator by operator; Inductor without donated buffers."""


def by(mode: str, ours: str) -> str:
    """The name of a mode with our pass."""
    return f"{mode}+{ours}"


MEASURED = (*PLAIN, *STEPS, *(by(mode, ours) for ours in reversed(OURS) for mode in PLAIN))
"""All that runs here."""
