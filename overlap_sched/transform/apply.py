"""What rewrites make of a problem: problem in, problem out.

Whatever makes a part of a rewrite raises ``RewriteError`` where that is not legal here.

>>> from overlap_sched.cost import Roofline
>>> from overlap_sched.problem import EXAMPLE
>>> from overlap_sched.transform.rewrites import Stream
>>> after = apply(EXAMPLE, [Stream("scatter")], Prices(Roofline()))
>>> sorted(after.groups)
['fsdp', 'fsdp/2']
"""

from collections.abc import Sequence

from overlap_sched.errors import RewriteError
from overlap_sched.problem import NodeId, Problem
from overlap_sched.transform.again import gathered_again, kept, streamed
from overlap_sched.transform.bucket import bucketed, split
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.in_parts import fissioned
from overlap_sched.transform.in_place import written_over
from overlap_sched.transform.members import Alike
from overlap_sched.transform.offload import offloaded
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recompute import recomputed
from overlap_sched.transform.rewrites import Bucket, InPlace, Keep, Offload, Recompute, Regather, Rewrite, Split, Stream

NOT_KNOWN: Alike = {}
"""Of a problem file: types and reductions are not known, and taken to be alike."""


def apply(
    problem: Problem,
    rewrites: Sequence[Rewrite],
    prices: Prices,
    alike: Alike = NOT_KNOWN,
    order: Sequence[NodeId] | None = None,
) -> Problem:
    """The rewritten problem; its original order is the given one with new nodes in the place of old ones.

    A new launch stands where the last of its members stood, or before its first user where that is earlier; what
    stands for a wait, where that stood. What must run before a node that is moved up is moved up with it.

    Args:
        problem: In the ``runtime`` memory model.
        rewrites: Done in this order.
        prices: Of new nodes.
        alike: What members of a bucket must share besides operator and group.
        order: A valid order of the problem; ``None``: its original one.

    Raises:
        RewriteError: One of them is not legal here; the message says which, and why.
    """
    if problem.memory_model != "runtime":
        raise RewriteError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model: rewrites want 'runtime'."
        )
    draft = Draft(problem, problem.original_order if order is None else order)
    for rewrite in rewrites:
        match rewrite:
            case Bucket():
                bucketed(draft, rewrite, prices, alike)
            case Split():
                split(draft, rewrite, prices)
            case Keep():
                kept(draft, rewrite)
            case InPlace():
                written_over(draft, rewrite, prices)
            case Regather():
                gathered_again(draft, rewrite, prices)
            case Fission():
                fissioned(draft, rewrite, prices)
            case Recompute():
                recomputed(draft, rewrite)
            case Offload():
                offloaded(draft, rewrite, prices.host)
            case Stream():
                streamed(draft, rewrite)
    return draft.finished()
