"""Rewrite the collectives of a graph for a plug-in: chosen, prepared, agreed with all ranks, and only then done.

    lift -> choose -> prepare -> all ranks agree -> commit, which cannot fail
                any failure before, or no agreement: undo, the graph as it was on every rank

Ranks show each other the graph, the options and the prices from which they have chosen, and what: under ``order`` of
their digests stand the rewrites. What comes after (Inductor's lowering, the order behind fusion) meets a rewritten
graph as it would any other, and agrees on its order by itself.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

from overlap_sched.distributed import Digest, digest_of
from overlap_sched.errors import AgreementError, VerificationError
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.fx.rewrites import Pending, alike_of, prepare
from overlap_sched.fx.rewrites.planning import may_rewrite
from overlap_sched.inductor.agree import asks, graph_key
from overlap_sched.inductor.cache_key import key_after, settings_key
from overlap_sched.inductor.cached_orders import CachedOrder, decided, note_rewrites, order_of, watched
from overlap_sched.inductor.fx_stage import graph_name
from overlap_sched.inductor.launches import launch_digest, launches_in
from overlap_sched.inductor.lift.saved import note_held
from overlap_sched.inductor.reporting import log, rewritten, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.report.units import count
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Rewrite, to_json


class RewriteChoice(NamedTuple):
    """What is to be done to a graph.

    Attributes:
        rewrites: In their order; none: the graph stays.
        names: An order of the rewritten problem; ``None``: the graph's own.
        made: The plan that they are of, for the report; ``None``: they are of none.
    """

    rewrites: Sequence[Rewrite] = ()
    names: Sequence[str] | None = None
    made: Plan | None = None


Choose = Callable[[Lifted, Settings, Mapping[str, str]], RewriteChoice]
"""Chooses rewrites of a lifted graph. It must be the same function of the same graph on every rank; the mapping is what
members of a bucket must share, see :func:`overlap_sched.fx.rewrites.alike_of`."""
Worth = Callable[[Sequence[fx.Node], Settings], bool]
"""Says of the nodes that communicate whether there may be anything to do: the same on all ranks that launch alike."""


@dataclass
class _Known:
    """What is known of a graph so far: as much as a failure leaves.

    Attributes:
        name: The graph's.
        key: Under which the ranks meet; ``""``: not yet known.
        launches: The digest of its launches; ``""``: not known.
        mine: What the others are shown.
        pending: The rewritten graph, not committed.
        choice: What it was made by.
        cached: What code of the graph is to carry of it into torch's cache; ``None``: it must not be cached, or need
            not be agreed on.
    """

    name: str = "a graph"
    key: str = ""
    launches: str = ""
    mine: Digest | None = None
    pending: Pending | None = None
    choice: RewriteChoice = field(default_factory=RewriteChoice)
    cached: CachedOrder | None = None


def collectives_may_change(launches: Sequence[fx.Node], settings: Settings) -> bool:
    """Tell whether to look for rewrites of collectives, see :func:`overlap_sched.fx.rewrites.planning.may_rewrite`."""
    return may_rewrite(launches, settings.options)


def rewrite_fx(
    gm: fx.GraphModule | fx.Graph,
    settings: Settings,
    choose: Choose,
    kind: str | None = None,
    worth: Worth = collectives_may_change,
) -> Sequence[Rewrite]:
    """Rewrite a graph in place, or leave it as it was; all ranks do the same.

    Call it on every rank for every graph, before its order is planned.

    Args:
        gm: The graph, or its module, which is recompiled.
        settings: How; whom to ask.
        choose: What to do.
        kind: See :func:`overlap_sched.inductor.fx_stage.schedule_fx`.
        worth: Whether to look at the graph at all.

    Returns:
        What was done.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    known = _Known()
    try:
        agreed = worth(_launches(gm), settings) and _decided(gm, settings, choose, known, kind)
    except BaseException as error:
        if known.pending is not None:
            known.pending.undo()
        if isinstance(error, Exception):  # a pass that fails must not take the compilation with it
            return _refused(known, settings, error)
        raise
    if known.pending is None:
        return ()
    if not agreed:
        known.pending.undo()
        return ()
    known.pending.commit()
    if known.choice.made is not None:
        rewritten(known.name, known.choice.made)
    return known.choice.rewrites


def _decided(
    gm: fx.GraphModule | fx.Graph, settings: Settings, choose: Choose, known: _Known, kind: str | None
) -> bool:
    """Decide whether to do what is then pending; what failed here is raised once the other ranks know of it."""
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    note, failure = note_rewrites(graph) if asks(settings) else None, None
    try:
        _prepare(gm, settings, choose, known, kind)
    except Exception as error:
        failure = error
    agreed = _agreed(known, settings, failure)
    if note is not None:
        note(known.cached)
    if failure is not None:
        raise failure
    return agreed


def _launches(gm: fx.GraphModule | fx.Graph) -> Sequence[fx.Node]:
    return launches_in((gm.graph if isinstance(gm, fx.GraphModule) else gm).nodes)


def _prepare(
    gm: fx.GraphModule | fx.Graph, settings: Settings, choose: Choose, known: _Known, kind: str | None
) -> None:
    """Plan what this rank would do by itself."""
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    if asks(settings):
        known.key, known.launches = graph_key(graph, "rewrites"), launch_digest(launches_in(graph.nodes))
    known.name = graph_name(graph, kind)
    compiled = settings.stage in ("inductor", "post_grad")
    if compiled:
        note_held(graph)
    lifted = lift(graph, name=known.name, fusion="inductor" if compiled else "none", **settings.costs)
    choice = known.choice = choose(lifted, settings, alike_of(graph))
    if known.key:
        problem = lifted.problem
        digest = digest_of(problem, settings.options, problem.original_order)
        known.mine = replace(digest, key=known.key, launches=known.launches, order=_digest(choice))
    if choice.rewrites or choice.names is not None:
        known.pending = prepare(gm, choice.rewrites, choice.names)
        log.info("%s: %s, if all ranks agree", known.name, count(len(choice.rewrites), "rewrite"))


def _digest(choice: RewriteChoice) -> str:
    """Return the digest of the rewrites, and of the order where there is one."""
    names = None if choice.names is None else list(choice.names)
    said = json.dumps([to_json(choice.rewrites), names], sort_keys=True)
    return f"rewrites: {hashlib.sha256(said.encode()).hexdigest()}"


def _agreed(known: _Known, settings: Settings, failure: Exception | None) -> bool:
    """Tell whether all ranks do the same; nothing that could fail comes after it."""
    if not known.key:
        return True
    mine = known.mine
    if mine is None or failure is not None:
        mine = Digest.of_failure(_text(failure), known.key, known.launches, known.name)
    agreement = decided(mine, settings)
    if agreement is None:
        return True
    known.cached = order_of(mine, agreement, "nothing is rewritten")
    if agreement.agreed:
        return True
    if agreement.verdict.to_mend or not agreement.verdict.launches_alike:
        warn(f"overlap_sched rewrites no collective of {known.name!r}: {agreement.reason}")
    return False


def _refused(known: _Known, settings: Settings, failure: Exception) -> Sequence[Rewrite]:
    if settings.options.strict:
        if isinstance(failure, VerificationError | AgreementError):
            raise failure
        raise VerificationError(f"rewriting {known.name!r} failed: {_text(failure)}") from failure
    warn(f"overlap_sched rewrites no collective of {known.name!r}: {_text(failure)}")
    return ()


def _text(failure: Exception | None) -> str:
    return f"{type(failure).__name__}: {failure}"


@dataclass(frozen=True)
class RewritePass(CustomGraphPass):
    """A pass for ``torch._inductor.config.post_grad_custom_post_pass``: rewrites, before Inductor lowers.

    Attributes:
        settings: How.
        choose: What to do.
        before: The pass that was set before; it runs first.
    """

    settings: Settings
    choose: Choose
    before: CustomGraphPass | None = None

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite the graph in place, or leave it as it was."""
        if self.before is not None:
            self.before(graph)
        from overlap_sched.inductor.watch import in_the_way  # which imports this module

        if config.deterministic or in_the_way(self.settings) is not None:  # no order is set behind fusion
            return
        rewrite_fx(graph, self.settings, self.choose)

    def uuid(self) -> str | None:
        """A name for torch's caches; ``None``: compile without them.

        So it is where ranks must agree, and torch does not ask us before it uses code: one that found a rewritten graph
        in a cache would not take part.
        """
        if not watched(self.settings):
            return None
        return key_after(self.before, settings_key(self.settings))
