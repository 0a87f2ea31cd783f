"""A traced step with the prices of its device."""

from torch import fx

from overlap_sched.cost import CostModel, Roofline
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import Lifted
from overlap_sched.problem import Problem
from tests.support.traced_step import Workload


def step_lifted(workload: Workload, step: fx.GraphModule, model: CostModel | None = None) -> Lifted:
    """The step in the ``runtime`` memory model, with the prices of the workload's device, and the FX graph behind it.

    A kernel per operator, as PyTorch and MAGIS run it. (Prices of fused kernels would not do here: a kernel's time is
    divided among the operators in it, and some of them cost nothing; what runs again alone costs its own kernel.)

    Args:
        workload: What was traced.
        step: Of :func:`with_updates`.
        model: Of prices; ``None``: the roofline of the workload's device.
    """
    return lift(step, name=workload.name, model=model or Roofline(workload.device))


def step_problem(workload: Workload, step: fx.GraphModule) -> Problem:
    """The problem of :func:`step_lifted` alone."""
    return step_lifted(workload, step).problem
