"""Our pass of GraphTrainer's list, and the same inside Inductor where that compiles the whole graph."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import fx

from overlap_sched.inductor.choosing import rewrite_and_schedule
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import enabled
from overlap_sched.titan.artifact import mark
from overlap_sched.titan.chosen import plug_in_arguments
from overlap_sched.titan.fit_step import fit_step

GraphPass = Callable[..., fx.GraphModule]
"""A pass of GraphTrainer: ``(gm, example_inputs) -> gm``."""


def overlap_sched_pass(gm: fx.GraphModule, example_inputs: Any = None, *, settings: Settings) -> fx.GraphModule:
    """Fit the graph of a training step where that is asked for, and reorder it; in place, or it stays as it was.

    All ranks do the same.

    Its name is what ``--compile.disable_passes overlap_sched_pass`` turns off.

    Args:
        gm: The graph as torchtitan's own passes have left it.
        example_inputs: Not needed.
        settings: How.

    Returns:
        ``gm``.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    rewrite_and_schedule(gm, fit_step(gm, settings), "training step")
    return mark(gm)


def inside_inductor(full_compilation: GraphPass, settings: Settings) -> GraphPass:
    """The pass that compiles the whole graph, with our plug-in switched on while Inductor runs.

    Inductor orders a graph that it lowers anew; only what is ordered after its fusion stays.
    """

    @wraps(full_compilation)
    def compile_whole_graph(*arguments: Any, **named: Any) -> fx.GraphModule:
        with enabled(**plug_in_arguments(settings)):
            return mark(full_compilation(*arguments, **named))

    return compile_whole_graph
