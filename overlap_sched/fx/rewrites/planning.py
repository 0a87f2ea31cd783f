"""Which rewrites pay for a lifted graph: what all front ends that have one ask."""

from collections.abc import Sequence

from torch import fx

from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.backends import forms_for
from overlap_sched.fx.rewrites.sites import LAUNCHES
from overlap_sched.options import Options, on_devices
from overlap_sched.transform.members import Alike
from overlap_sched.transform.plan import Plan, plan, tried_ahead
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.wanted import wanted_of


def may_rewrite(launches: Sequence[fx.Node], options: Options) -> bool:
    """Whether there may be anything to rewrite, by the launches alone: so ranks that launch alike all say the same.

    Args:
        launches: All nodes that communicate.
        options: What may be tried.
    """
    sites = [node for node in launches if node.target in LAUNCHES]
    wanted = wanted_of(options, forms_for(sites))
    mates = sum(LAUNCHES[node.target] in wanted.ops for node in sites) if wanted.forms else 0
    return mates > 1 or (wanted.streams and bool(sites))


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
    return plan(lifted.problem, Prices(lifted.model), on_devices(options, lifted.devices), alike, forms)


def plan_rewrites(lifted: Lifted, options: Options, alike: Alike) -> Plan | None:
    """The same where nothing is wanted but a rewritten graph; ``None``: none is shorter, which is soon known."""
    problem, prices, options = lifted.problem, Prices(lifted.model), on_devices(options, lifted.devices)
    forms = forms_for(lifted.nodes[v] for v in problem.collectives)
    trials = tried_ahead(problem, prices, options, alike, forms)
    made = plan(problem, prices, options, alike, forms, trials) if trials else None
    return made if made is not None and made.rewrites else None
