"""Whether times look as if they were in another unit than microseconds."""

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Problem


def question_step(problem: Problem) -> str | None:
    """Say what to check where the step of the original order is longer than an hour or shorter than a microsecond.

    ``None``: it is not, or nothing in the problem takes time.
    """
    step_us = replay(problem, problem.original_order).step_us
    if step_us == 0 or 1 <= step_us <= 3600e6:
        return None
    found = f"{step_us / 3600e6:,.1f} hours" if step_us > 1 else f"{step_us * 1e3:.3g} ns"
    return (
        f"the original step takes {found}: are all times in microseconds, sizes in bytes, rates per second? "
        "`overlap-sched explain --costs` lists the longest nodes and where their times come from"
    )
