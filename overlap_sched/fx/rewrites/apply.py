"""Do rewrites to an FX graph: all of them, or none.

    pending = prepare(gm, rewrites)     # RewriteError: they are not legal, the graph is as it was
    pending.commit()                    # cannot fail; or pending.undo()

Between the two ranks can agree: what may fail on one of them has been done. All that checks or makes a part of a
rewrite raises ``RewriteError`` where it is not legal.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import fx

from overlap_sched.cost import Collective
from overlap_sched.errors import RewriteError
from overlap_sched.fx.graphs import graph_of, link, marks_of, with_ends
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.facts import GraphFacts, forms_for
from overlap_sched.fx.rewrites.maker import LAUNCHES, GraphMaker, arguments
from overlap_sched.options import Options, on_devices
from overlap_sched.problem import Group, Problem
from overlap_sched.transform.apply import Alike
from overlap_sched.transform.plan import Plan, most_gain_us, plan, refused, wanted_of
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recipes import check, rewrite
from overlap_sched.transform.rewrites import BUCKETED, Form, Rewrite
from overlap_sched.transform.search import Refuses


@dataclass(frozen=True)
class Pending:
    """Rewrites that are prepared: commit or undo them before anything else is done to the graph.

    Attributes:
        gm: The graph, or its module.
        draft: What is to become of it.
        order: The nodes that stay, in an order that is right.
        gone: The others, each before what it takes.
    """

    gm: fx.GraphModule | fx.Graph
    draft: GraphMaker
    order: Sequence[fx.Node]
    gone: Sequence[fx.Node]

    def commit(self) -> None:
        """The graph is the rewritten one from now on; a module is recompiled.

        All is worked out before: other ranks do the same by now, so nothing may fail here.
        """
        for node in self.gone:
            self.draft.graph.erase_node(node)
        link(self.gm, self.order)

    def undo(self) -> None:
        """The graph is as it was."""
        self.draft.undo()


def rewrite_graph(gm: fx.GraphModule | fx.Graph, rewrites: Sequence[Rewrite]) -> None:
    """Do rewrites to a graph, in place, in the order in which they are listed.

    Args:
        gm: A graph of functional collectives whose nodes have ``meta["val"]``. A module is recompiled.
        rewrites: What to do.

    Raises:
        RewriteError: One of them is not legal; the graph is as it was.
    """
    prepare(gm, rewrites).commit()


def prepare(gm: fx.GraphModule | fx.Graph, rewrites: Sequence[Rewrite], names: Sequence[str] | None = None) -> Pending:
    """Make the new nodes, check everything, and leave it to the caller to commit or undo.

    Args:
        gm: A graph, or its module.
        rewrites: What to do.
        names: An order of the rewritten problem, as names of its nodes; ``None``: the graph's own, with new nodes in
            the place of old ones.

    Raises:
        RewriteError: One of them is not legal, or the order is not; the graph is as it was.
    """
    draft = GraphMaker(graph_of(gm))
    try:
        for one in rewrites:
            rewrite(draft, one)
        order = draft.order() if names is None else draft.in_order(names)
        inputs = [node for node in draft.graph.nodes if node.op == "placeholder"]
        return Pending(gm, draft, with_ends(order, inputs), draft.gone())
    except BaseException:
        draft.undo()
        raise


def alike_of(gm: fx.GraphModule | fx.Graph) -> dict[str, str]:
    """Per collective that can be bucketed, by name, what members of a bucket must share: ``"bfloat16 sum"``.

    Besides operator and group; what else must be seen by who chooses are paths between members.
    """
    make = GraphMaker(graph_of(gm))
    kinds: dict[str, str] = {}
    for node in make.graph.nodes:
        if node.op == "call_function" and node.target in LAUNCHES:
            try:
                one = make.single(node.name)
                make.check_member(one, "copied")
            except RewriteError:
                continue
            kinds[node.name] = str(one.shared["type and reduction"])
    return kinds


def rerunnable(gm: fx.GraphModule | fx.Graph) -> frozenset[str]:
    """Names of the nodes that may run again: pure functions, nothing of whose values is written to."""
    graph = graph_of(gm)
    facts = GraphFacts(graph)
    return frozenset(node.name for node in graph.nodes if not facts.impure(node))


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
    gathers = [arguments(node)[1:] for node in sites if LAUNCHES[node.target] == "all_gather_into_tensor"]
    same = wanted.keeps and len(set(gathers)) < len(gathers)  # two in one group might be of the same
    return mates > 1 or same or (wanted.beyond_bound and bool(sites))


def refusals_in(lifted: Lifted) -> Refuses:
    """Why rewrites are not legal in the graph that was lifted.

    What is found once it is asked for is kept: the graph must stay as it is meanwhile.
    """
    make = cache(lambda: GraphMaker(lifted.nodes[0].graph))

    def refuses(rewrite: Rewrite) -> str:
        try:
            check(make(), rewrite)
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
        if (op := node.op.removesuffix("_coalesced")) in BUCKETED:
            given[op, group] += node.time_us
            modelled[op, group] += lifted.model.collective_us(Collective(node.op, node.bytes, group))
    return Prices(lifted.model, scales={key: us / modelled[key] for key, us in given.items() if modelled[key] > 0})


Question = tuple[Problem, Prices, Options, Alike, tuple[Form, ...], Refuses]


def _asked(lifted: Lifted, options: Options, alike: Alike) -> Question:
    """List what :func:`overlap_sched.transform.plan.plan` takes; new nodes are priced by the model of the others."""
    forms = forms_for(lifted.nodes[v] for v in lifted.problem.collectives)
    return lifted.problem, prices_of(lifted), on_devices(options, lifted.devices), alike, forms, refusals_in(lifted)


def plan_lifted(lifted: Lifted, options: Options, alike: Alike) -> Plan:
    """Rewrites and an order of a graph.

    Args:
        lifted: The graph.
        options: What may be tried.
        alike: What members of a bucket must share, see :func:`overlap_sched.fx.rewrites.alike_of`.

    Raises:
        VerificationError: With ``options.strict``, see :func:`overlap_sched.transform.plan.plan`.
    """
    return plan(*_asked(lifted, options, alike))


def plan_rewrites(lifted: Lifted, options: Options, alike: Alike) -> Plan | None:
    """The same where nothing is wanted but a rewritten graph; ``None``: none is shorter, which is soon known."""
    problem, prices, options, alike, forms, refuses = _asked(lifted, options, alike)
    if not most_gain_us(problem, prices, alike, wanted_of(options, forms)):
        return None
    made = plan(problem, prices, options, alike, forms, refuses)
    return made if made.rewrites else None


def refused_in(lifted: Lifted, options: Options, alike: Alike) -> tuple[str, ...]:
    """Why collectives are not rewritten, see :func:`overlap_sched.transform.plan.refused`."""
    *_, forms, refuses = _asked(lifted, options, alike)
    return refused(lifted.problem, alike, wanted_of(options, forms), refuses)
