"""What each node takes on the compute stream: the judges' own reading of the nodes."""

from overlap_sched.problem import Kind, Problem


def compute_us(problem: Problem) -> list[float]:
    """Per node, microseconds on the compute stream: 0 for collectives and waits."""
    return [0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us for node in problem.nodes]
