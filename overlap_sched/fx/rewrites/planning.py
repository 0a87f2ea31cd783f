"""Which rewrites pay for a lifted graph: what all front ends that have one ask."""

from collections.abc import Sequence

from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.again import check_keep, check_regather
from overlap_sched.fx.rewrites.backends import forms_for
from overlap_sched.fx.rewrites.draft import Draft
from overlap_sched.fx.rewrites.in_place import check_in_place
from overlap_sched.fx.rewrites.sites import LAUNCHES, arguments
from overlap_sched.options import Options, on_devices
from overlap_sched.transform.members import Alike
from overlap_sched.transform.plan import Plan, plan, plan_of_rewrites
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import InPlace, Keep, Regather, Rewrite
from overlap_sched.transform.trial import Legal
from overlap_sched.transform.wanted import wanted_of


def may_rewrite(launches: Sequence[fx.Node], options: Options) -> bool:
    """Whether there may be anything to rewrite, by launches alone: the same on all ranks that launch alike.

    What they take is not looked at: where one rank casts otherwise, it would not come where another asks for it.

    Args:
        launches: All nodes that communicate.
        options: What may be tried.
    """
    sites = [node for node in launches if node.target in LAUNCHES]
    wanted = wanted_of(options, forms_for(sites))
    mates = sum(LAUNCHES[node.target] in wanted.ops for node in sites) if wanted.forms else 0
    return mates > 1 or (wanted.keeps and _two_in_one_group(sites)) or (wanted.beyond_bound and bool(sites))


def _two_in_one_group(sites: Sequence[fx.Node]) -> bool:
    """Whether two gathers might be of the same."""
    gathers = [node for node in sites if LAUNCHES[node.target] == "all_gather_into_tensor"]
    return len({arguments(node)[1:] for node in gathers}) < len(gathers)


def legal_in(lifted: Lifted) -> Legal:
    """Whether a gather may be kept or done again, or a result be written in place, in the graph that was lifted.

    What is found once it is asked for is kept: the graph must stay as it is meanwhile.
    """
    drafts: list[Draft] = []

    def legal(rewrite: Rewrite) -> bool:
        if not drafts:
            drafts.append(Draft(lifted.nodes[0].graph))
        try:
            if isinstance(rewrite, Keep):
                check_keep(drafts[0], rewrite)
            elif isinstance(rewrite, InPlace):
                check_in_place(drafts[0], rewrite)
            elif isinstance(rewrite, Regather):
                check_regather(drafts[0], rewrite)
        except RewriteError:
            return False
        return True

    return legal


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
    return plan(
        lifted.problem, Prices(lifted.model), on_devices(options, lifted.devices), alike, forms, legal=legal_in(lifted)
    )


def plan_rewrites(lifted: Lifted, options: Options, alike: Alike) -> Plan | None:
    """The same where nothing is wanted but a rewritten graph; ``None``: none is shorter, which is soon known."""
    problem, prices, options = lifted.problem, Prices(lifted.model), on_devices(options, lifted.devices)
    forms = forms_for(lifted.nodes[v] for v in problem.collectives)
    return plan_of_rewrites(problem, prices, options, alike, forms, legal_in(lifted))
