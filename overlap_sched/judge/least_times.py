"""The problem that bounds are computed of: no collective takes less time there than it may really take.

Bounds add up times of collectives. Where a collective goes faster beside compute than alone
(``Contention.stretch`` below 1) it may take less than its time, but never less than time * stretch::

    alone             |====== 40 ======|
    beside compute    |=== 20 ===|            stretch 0.5: a bound counts 20

With these times a bound holds whatever runs beside: it never counts on a collective going faster than alone.
"""

from dataclasses import replace

from overlap_sched.problem import Kind, Problem


def with_least_times(problem: Problem) -> Problem:
    """The same problem with the least time of each collective; itself where none goes faster beside compute."""
    contention = problem.contention
    if all(factor >= 1.0 for factor in contention.stretch.values()):
        return problem
    nodes = tuple(
        node._replace(time_us=node.time_us * min(contention.stretch_of(node.op), 1.0))
        if node.kind is Kind.COLLECTIVE
        else node
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes, contention=replace(contention, stretch={}))
