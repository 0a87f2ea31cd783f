"""The two questions, answered: the shortest step within a memory limit, the lowest peak within a step limit.

Live bytes within a limit are not enough where they leave holes: what torch's caching allocator makes of plans counts.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fit.answer import Faster, Fit, FitPoint, Held
from overlap_sched.fit.in_parts import Ways, effects
from overlap_sched.fit.planner import FitContext, Planner, begun_with
from overlap_sched.fit.question import Question
from overlap_sched.options import Options, options_given, replayed_allocator
from overlap_sched.problem import Problem
from overlap_sched.problem.sizes import AllocatorSettings
from overlap_sched.scheduler.restrictions import needed_bytes
from overlap_sched.simulate.allocator import Requests, requests_of
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.search import Limit, halve

KINDS = ("recompute", "offload")
"""What may be done to values."""
HALVINGS = 7
"""Of the range between the lowest peak that could be and the one that is enough."""
HALVED_NODES = 175_000
"""Of larger graphs fewer halvings are tried, one at least: so that so many nodes are planned for."""
MISSES = 3
"""So often in a row nothing is found below the middle, until that is all."""
LOWERED, LOWERED_BY = 3, 0.95
"""Where no plan within a memory limit runs on a device of that memory, plans within so many lower limits are looked
for: lower by what was lacking, and by this part at least; once one runs, halfway back to what did not."""
CLOSE = 0.995
"""A range as narrow as this is not halved any further."""


def fit(
    problem: Problem,
    prices: Prices,
    options: Options | None = None,
    *,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    kinds: Collection[str] = KINDS,
    rerun: Collection[str] | None = None,
    host_limit_bytes: int | None = None,
    extra: Sequence[Rewrite | tuple[Rewrite, ...]] = (),
    fissions: Sequence[Fission] = (),
    effort: int = 2,
    tell: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Answer one of two questions: give ``memory_limit`` for one, ``max_slowdown`` for the other.

    Nothing gets worse: the graph as it was, in its best order, is always among the plans. Where nothing that was found
    keeps to the limit, the answer is the plan nearest to it, and ``fits`` is false.

    Args:
        problem: In the ``runtime`` memory model.
        prices: Of new nodes; ``prices.host`` of copies to the host.
        options: Of the scheduler; ``None``: the defaults.
        memory_limit: The device on which the step is to run, as of :class:`~overlap_sched.options.Options`: the
            shortest step is looked for.
        max_slowdown: How much longer than the best order without rewrites a step may be (0.05: five percent): the
            lowest peak is looked for.
        kinds: What may be done, of :data:`KINDS`.
        rerun: Names of nodes that may run again, of a graph about which that is known
            (:func:`overlap_sched.fx.rewrites.rerunnable`); ``None``: by operator, and attention, which may draw random
            numbers, does not.
        host_limit_bytes: Pinned host memory at most; ``None``: no limit.
        extra: Further rewrites, each a candidate of its own (a fission); tried one after
            the other, and kept where the answer gets better.
        fissions: Ways to run much of the graph in parts, of which a plan begins with at most one
            (:func:`overlap_sched.fx.rewrites.batches.batch_fissions`). All are measured; other rewrites are searched
            for behind those that promise most.
        effort: How much is tried: 0, 1 or 2.
        tell: Hears what is being done.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
        RewriteError: The problem is in another memory model.
        VerificationError: With ``options.strict``: what would otherwise be the reason for falling back.
    """
    question = Question(memory_limit, max_slowdown, "what the original order needs")
    _check(problem, kinds, host_limit_bytes, effort)
    wanted = options_given(options)
    known, ordered = None if rerun is None else frozenset(rerun), tuple(kind for kind in KINDS if kind in kinds)
    asked = FitContext(problem, prices, wanted, ordered, known, host_limit_bytes, effort)
    planner = Planner(asked, None, tell)
    needed = needed_bytes(LiveRanges(problem), problem.original_order, replayed_allocator(wanted))
    limit = question.limit(needed, planner.without.step_us)
    ways, fell_back = Ways(asked, fissions, limit), None
    try:
        planner = _searched(planner, ways, extra)
    except Exception as error:  # what fails here must not take the training job with it
        fell_back = f"{type(error).__name__}: {error}"
        if wanted.strict:
            raise VerificationError(f"fitting {problem.name!r} failed: {fell_back}") from error
        message = f"overlap_sched fits nothing in {problem.name!r}: {fell_back}"
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        planner.points = [planner.without]
    best, held = held_best(planner.points, limit, wanted)
    if _over_bytes(held) and ways.left and fell_back is None:  # slower, and perhaps without holes
        ways.make(planner, all_=True)
        best, held = held_best(planner.points, limit, wanted)
    if _over_bytes(held) and fell_back is None:
        _lower(planner, limit, wanted)
        best, held = held_best(planner.points, limit, wanted)
    return Fit(
        best=best,
        original=planner.original,
        without=planner.without,
        limit_bytes=limit.bytes,
        limit_us=limit.us,
        points=tuple(planner.points),
        tried=planner.tried,
        fell_back=fell_back,
        held=held,
        effects=effects(asked, planner.original, best, {plan.rewrites: plan for plan in ways.found}),
    )


def _searched(planner: Planner, ways: Ways, extra: Sequence[Rewrite | tuple[Rewrite, ...]]) -> Planner:
    limit, plain = ways.limit, planner
    if limit.bytes is not None:
        plain.at(limit.bytes, otherwise=lambda: ways.make(plain))
    ways.make(planner)
    for begin in ways.promising(planner.points):
        planner = _with(planner, begin, limit)
    if limit.us is not None:  # what is in parts is quickly found, and leaves less to look for
        plain.points, plain.tried = planner.points, planner.tried
        _answer(plain, limit)
        planner.points, planner.tried = plain.points, plain.tried
    for more in extra:
        several = more if isinstance(more, tuple) else (more,)
        try:
            begin = begun_with(planner.asked, (*planner.before, *several))
        except RewriteError:
            continue
        planner = _with(planner, begin, limit)
    return planner


def _lower(planner: Planner, limit: Limit, options: Options) -> None:
    """Look for plans of fewer live bytes, until one runs on a device of the limit."""
    assert limit.bytes is not None
    lacks = below = limit.bytes
    for _ in range(LOWERED):
        over_bytes = _over_bytes(held_best(planner.points, limit, options)[1])
        if over_bytes:
            lacks, below = below, below - max(over_bytes, int(below * (1 - LOWERED_BY)))
        elif below < lacks * LOWERED_BY:
            below = (below + lacks) // 2
        else:
            break
        planner.tell(f"looking for a plan of {below:,} bytes, which the allocator may hold within the limit")
        planner.at(below)


def _answer(planner: Planner, limit: Limit) -> None:
    if limit.bytes is not None:
        planner.at(limit.bytes)
        return
    low = sum(storage.bytes for storage in planner.problem.storages if storage.pinned)
    most = max(1, min(HALVINGS, HALVED_NODES // len(planner.problem.nodes)))

    def reach(middle: int) -> int:
        planner.at(middle, limit.us or 0.0)
        return limit.best(planner.points).peak_bytes

    halve(low, limit.best(planner.points).peak_bytes, reach, most, CLOSE, MISSES)


def _with(planner: Planner, begin: FitPoint, limit: Limit) -> Planner:
    """The planner with other rewrites to begin with, where the answer is better with them; all plans of both."""
    other = Planner(planner.asked, begin, planner.tell, planner)
    old = limit.best(planner.points)
    _answer(other, limit)
    winner = other if limit.key(limit.best(other.points)) < limit.key(old) else planner
    winner.points, winner.tried = other.points, planner.tried + other.tried
    winner.original, winner.without = planner.original, planner.without
    return winner


def _check(problem: Problem, kinds: Collection[str], host: int | None, effort: int) -> None:
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise OptionsError(f"kinds has {', '.join(map(repr, unknown))}; known are {', '.join(map(repr, KINDS))}.")
    if host is not None and host < 0:
        raise OptionsError(f"host_limit_bytes is {host}; it is 0 or more.")
    if effort not in (0, 1, 2):
        raise OptionsError(f"effort is {effort}; it is 0, 1 or 2.")
    if problem.memory_model != "runtime":
        raise RewriteError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model: rewrites want 'runtime'."
        )


def held_best(points: Sequence[FitPoint], limit: Limit, options: Options) -> tuple[FitPoint, Held | None]:
    """Return the point that answers a question best, and what the allocator makes of it.

    Within a memory limit: the shortest plan that runs on a device of so much memory, with retries where it needs them.
    Where none does: the one that lacks least, and how much.

    Args:
        points: All plans.
        limit: The question.
        options: ``allocator`` says how it is set up; ``"none"``: live bytes alone count.
    """
    best, settings = limit.best(points), replayed_allocator(options)
    asked = _requests(best)
    if limit.bytes is None or settings is None or best.peak_bytes > limit.bytes:
        return best, _held(asked, settings, 0)
    within = sorted((one for one in points if one.peak_bytes <= limit.bytes), key=lambda one: one.step_us)
    lacking, faster = [], None
    for one in within:
        requests = asked if one is best else _requests(one)
        held = _held(requests, settings, 0)
        if requests.fits(limit.bytes, settings):
            return one, None if held is None else replace(held, faster=faster)
        lacking.append((requests.smallest_capacity(settings, limit.bytes) - limit.bytes, one, requests))
        faster = faster or Faster(one.step_us, lacking[0][0])
    over_bytes, best, asked = min(lacking, key=lambda each: each[0])
    held = _held(asked, settings, over_bytes)
    return best, None if held is None else replace(held, faster=None if best is within[0] else faster)


def _requests(plan: FitPoint) -> Requests:
    return requests_of(LiveRanges(plan.problem), plan.order)


def _over_bytes(held: Held | None) -> int:
    return 0 if held is None else held.over_bytes


def _held(requests: Requests, settings: AllocatorSettings | None, over_bytes: int) -> Held | None:
    if settings is None:
        return None
    return Held(requests.replayed(settings).peak_reserved_bytes, over_bytes)
