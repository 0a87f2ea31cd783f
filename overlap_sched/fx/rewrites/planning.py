"""Which rewrites pay for a lifted graph: what all front ends that have one ask."""

from collections import defaultdict
from collections.abc import Sequence

from torch import fx

from overlap_sched.cost import Collective
from overlap_sched.errors import RewriteError
from overlap_sched.fx.graphs import marks_of
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.again import check_keep, check_regather, check_stream
from overlap_sched.fx.rewrites.apply import check_member
from overlap_sched.fx.rewrites.backends import forms_for
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.sites import LAUNCHES, arguments
from overlap_sched.options import Options, on_devices
from overlap_sched.problem import Group
from overlap_sched.transform.members import Alike
from overlap_sched.transform.plan import Plan, plan, plan_of_rewrites, refused, wanted_of
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import BUCKETED, Bucket, Keep, Regather, Rewrite, Stream
from overlap_sched.transform.search import Refuses


def may_rewrite(launches: Sequence[fx.Node], options: Options) -> bool:
    """Tell whether there may be anything to rewrite, by launches alone: the same on all ranks that launch alike.

    What they take is not looked at: where one rank casts otherwise, it would not come where another asks for it.

    Args:
        launches: All nodes that communicate.
        options: What may be tried.
    """
    if launches and any(marks_of(node.meta) for node in launches[0].graph.nodes):
        return False  # pins say nothing of other nodes
    sites = [node for node in launches if node.target in LAUNCHES]
    wanted = wanted_of(options, forms_for(sites))
    mates = sum(LAUNCHES[node.target] in wanted.ops for node in sites) if wanted.forms else 0
    return mates > 1 or (wanted.keeps and _two_in_one_group(sites)) or (wanted.beyond_bound and bool(sites))


def _two_in_one_group(sites: Sequence[fx.Node]) -> bool:
    """Tell whether two gathers might be of the same."""
    gathers = [node for node in sites if LAUNCHES[node.target] == "all_gather_into_tensor"]
    return len({arguments(node)[1:] for node in gathers}) < len(gathers)


def refusals_in(lifted: Lifted) -> Refuses:
    """Why rewrites are not legal in the graph that was lifted.

    What is found once it is asked for is kept: the graph must stay as it is meanwhile.
    """
    drafts: list[GraphDraft] = []

    def refuses(rewrite: Rewrite) -> str:
        if not drafts:
            drafts.append(GraphDraft(lifted.nodes[0].graph))
        try:
            match rewrite:
                case Bucket():
                    for name in rewrite.members:
                        check_member(drafts[0], name)
                case Keep():
                    check_keep(drafts[0], rewrite)
                case Regather():
                    check_regather(drafts[0], rewrite)
                case Stream():
                    check_stream(drafts[0], rewrite)
        except RewriteError as error:
            return str(error)
        return ""

    return refuses


def prices_of(lifted: Lifted) -> Prices:
    """Return the prices of what rewrites make, by the model that has priced the graph.

    Times that were given say nothing of new nodes. A new collective takes so many times what the model says as all
    collectives of its operator and group together do.
    """
    given, modelled = defaultdict[tuple[str, Group], float](float), defaultdict[tuple[str, Group], float](float)
    for v in lifted.problem.collectives:
        node = lifted.problem.nodes[v]
        group = lifted.problem.groups[node.group or ""]
        op = node.op.removesuffix("_coalesced")
        if op in BUCKETED:
            given[op, group] += node.time_us
            modelled[op, group] += lifted.model.collective_us(Collective(node.op, node.bytes, group))
    return Prices(lifted.model, scales={key: us / modelled[key] for key, us in given.items() if modelled[key] > 0})


def plan_lifted(lifted: Lifted, options: Options, alike: Alike) -> Plan:
    """Rewrites and an order; new nodes are priced by the model that has priced the others.

    Args:
        lifted: The graph.
        options: What may be tried.
        alike: What members of a bucket must share, see :func:`overlap_sched.fx.rewrites.alike_of`.

    Raises:
        VerificationError: With ``options.strict``, see :func:`overlap_sched.transform.plan.plan`.
    """
    forms = forms_for(lifted.nodes[v] for v in lifted.problem.collectives)
    return plan(
        lifted.problem, prices_of(lifted), on_devices(options, lifted.devices), alike, forms, refusals_in(lifted)
    )


def refused_in(lifted: Lifted, options: Options, alike: Alike) -> tuple[str, ...]:
    """Why collectives are not rewritten, see :func:`overlap_sched.transform.wanted.refused`."""
    wanted = wanted_of(options, forms_for(lifted.nodes[v] for v in lifted.problem.collectives))
    return refused(lifted.problem, alike, wanted, refusals_in(lifted))


def plan_rewrites(lifted: Lifted, options: Options, alike: Alike) -> Plan | None:
    """The same where nothing is wanted but a rewritten graph; ``None``: none is shorter, which is soon known."""
    problem, prices, options = lifted.problem, prices_of(lifted), on_devices(options, lifted.devices)
    forms = forms_for(lifted.nodes[v] for v in problem.collectives)
    return plan_of_rewrites(problem, prices, options, alike, forms, refusals_in(lifted))
