"""Do rewrites to an FX graph: all of them, or none.

    pending = prepare(gm, rewrites)     # RewriteError: they are not legal, the graph is as it was
    pending.commit()                    # cannot fail; or pending.undo()

Between the two ranks can agree: what may fail on one of them has been done. All that checks or makes a part of a
rewrite raises ``RewriteError`` where it is not legal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.graphs import graph_of, link, with_ends
from overlap_sched.fx.rewrites.again import keep, regather, stream
from overlap_sched.fx.rewrites.backends import check_exact
from overlap_sched.fx.rewrites.bucket import bucket, split
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.fission import fission
from overlap_sched.fx.rewrites.in_place import in_place
from overlap_sched.fx.rewrites.recompute import offload, recompute
from overlap_sched.fx.rewrites.sites import LAUNCHES, Site, check_offsets, site
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.rewrites import Bucket, InPlace, Keep, Offload, Recompute, Regather, Rewrite, Split, Stream


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
    draft: GraphDraft
    order: Sequence[fx.Node]
    gone: Sequence[fx.Node]

    def commit(self) -> None:
        """The graph is the rewritten one from now on; a module is recompiled.

        All is worked out before: other ranks do the same by now, so nothing may fail here.
        """
        graph = self.gm.graph if isinstance(self.gm, fx.GraphModule) else self.gm
        for node in self.gone:
            graph.erase_node(node)
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
    draft = GraphDraft(graph_of(gm))
    try:
        for one in rewrites:
            since = draft.made
            _do(draft, one)
            draft.owned_by(getattr(one, "name", ""), since)
        order = draft.sorted() if names is None else draft.in_order(names)
        inputs = [node for node in draft.graph.nodes if node.op == "placeholder"]
        return Pending(gm, draft, with_ends(order, inputs), draft.gone())
    except BaseException:
        draft.undo()
        raise


def _do(draft: GraphDraft, rewrite: Rewrite) -> None:
    match rewrite:
        case Bucket():
            bucket(draft, rewrite)
        case Split():
            split(draft, rewrite)
        case Stream():
            stream(draft, rewrite)
        case Keep():
            keep(draft, rewrite)
        case InPlace():
            in_place(draft, rewrite)
        case Regather():
            regather(draft, rewrite)
        case Fission():
            fission(draft, rewrite)
        case Recompute():
            recompute(draft, rewrite)
        case Offload():
            offload(draft, rewrite)


def alike_of(gm: fx.GraphModule | fx.Graph) -> dict[str, str]:
    """Per collective that can be bucketed, by name, what members of a bucket must share: ``"bfloat16 sum"``.

    Besides operator and group; what else must be seen by who chooses are paths between members.
    """
    draft = GraphDraft(graph_of(gm))
    kinds: dict[str, str] = {}
    for node in draft.graph.nodes:
        if node.op == "call_function" and node.target in LAUNCHES:
            try:
                kinds[node.name] = check_member(draft, node.name).kind
            except RewriteError:
                continue
    return kinds


def check_member(draft: GraphDraft, name: str) -> Site:
    """The collective of this name, where it can be a member of a bucket."""
    one = site(draft, name)
    check_exact(name, one.op, one.reduction, one.taken.dtype, one.ranks)
    check_offsets(draft, [one])
    return one
