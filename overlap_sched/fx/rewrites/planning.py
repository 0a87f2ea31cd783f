"""Which rewrites pay for a lifted graph: what all front ends that have one ask."""

from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.backends import forms_for
from overlap_sched.options import Options
from overlap_sched.transform.members import Alike
from overlap_sched.transform.plan import Plan, plan
from overlap_sched.transform.prices import Prices


def plan_lifted(lifted: Lifted, options: Options, alike: Alike) -> Plan:
    """Rewrites and an order; new nodes are priced by the model that has priced the others.

    Args:
        lifted: The graph, priced without times of the user's own: those say nothing of nodes that rewrites make.
        options: What may be tried.
        alike: What members of a bucket must share, see :func:`overlap_sched.fx.rewrites.alike_of`.

    Raises:
        VerificationError: With ``options.strict``, see :func:`overlap_sched.transform.plan.plan`.
    """
    forms = forms_for(lifted.nodes[v] for v in lifted.problem.collectives)
    return plan(lifted.problem, Prices(lifted.model), options, alike, forms)
