"""The two questions, answered: the shortest step within a memory limit, the lowest peak within a step limit."""

import warnings
from collections.abc import Callable, Collection, Sequence

from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.fit.planner import Asked, Planner
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Rewrite

KINDS = ("recompute", "offload")
"""What may be done to values."""
HALVINGS = 7
"""Of the range between the lowest peak that could be and the one that is enough."""


def fit(
    problem: Problem,
    prices: Prices,
    options: Options | None = None,
    *,
    memory_limit_bytes: int | None = None,
    max_slowdown: float | None = None,
    kinds: Collection[str] = KINDS,
    rerun: Collection[str] | None = None,
    host_limit_bytes: int | None = None,
    extra: Sequence[Rewrite] = (),
    effort: int = 2,
    tell: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Answer one of two questions: give ``memory_limit_bytes`` for one, ``max_slowdown`` for the other.

    Nothing gets worse: the graph as it was, in its best order, is always among the plans. Where nothing that was found
    keeps to the limit, the answer is the plan nearest to it, and ``fits`` is false.

    Args:
        problem: In the ``runtime`` memory model.
        prices: Of new nodes; ``prices.host`` of copies to the host.
        options: Of the scheduler; ``None``: the defaults.
        memory_limit_bytes: The peak that must not be passed: the shortest step is looked for.
        max_slowdown: How much longer than the best order without rewrites a step may be (0.05: five percent): the
            lowest peak is looked for.
        kinds: What may be done, of :data:`KINDS`.
        rerun: Names of nodes that may run again, of a graph about which that is known
            (:func:`overlap_sched.fx.rewrites.rerunnable`); ``None``: by operator, and attention, which may draw random
            numbers, does not.
        host_limit_bytes: Pinned host memory at most; ``None``: no limit.
        extra: Further rewrites, each a candidate of its own (a fission); tried one after the other, and kept where the
            answer gets better.
        effort: How much is tried: 0, 1 or 2.
        tell: Hears what is being done.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
        RewriteError: The problem is in another memory model.
        VerificationError: With ``options.strict``: what would otherwise be the reason for falling back.
    """
    _check(memory_limit_bytes, max_slowdown, kinds, host_limit_bytes, effort)
    _check_model(problem)
    wanted = options or Options()
    known = None if rerun is None else frozenset(rerun)
    ordered = tuple(kind for kind in KINDS if kind in kinds)
    asked = Asked(problem, prices, wanted, ordered, known, host_limit_bytes, effort)
    planner = Planner(asked, (), tell)
    limit_us = None if max_slowdown is None else planner.without.step_us * (1 + max_slowdown)
    fell_back = None
    try:
        _answer(planner, memory_limit_bytes, limit_us)
        for one in extra:
            planner = _with(planner, one, memory_limit_bytes, limit_us)
    except Exception as error:  # what fails here must not take the training job with it
        fell_back = f"{type(error).__name__}: {error}"
        if wanted.strict:
            raise VerificationError(f"fitting {problem.name!r} failed: {fell_back}") from error
        message = f"overlap_sched fits nothing in {problem.name!r}: {fell_back}"
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        planner.points = [planner.without]
    best = _best(planner, memory_limit_bytes, limit_us)
    return Fit(
        best=best,
        original=planner.original,
        without=planner.without,
        limit_bytes=memory_limit_bytes,
        limit_us=limit_us,
        points=tuple(planner.points),
        tried=planner.tried,
        fell_back=fell_back,
    )


def fit_frontier(
    problem: Problem,
    prices: Prices,
    options: Options | None = None,
    *,
    shares: Sequence[float] = (0.8, 0.6, 0.4),
    kinds: Collection[str] = KINDS,
    rerun: Collection[str] | None = None,
    host_limit_bytes: int | None = None,
    effort: int = 2,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Fit, ...]:
    """The first question at several limits, each a part of the original peak; plans found for one serve the others.

    Raises:
        As :func:`fit`.
    """
    _check(0, None, kinds, host_limit_bytes, effort)
    _check_model(problem)
    known = None if rerun is None else frozenset(rerun)
    ordered = tuple(kind for kind in KINDS if kind in kinds)
    asked = Asked(problem, prices, options or Options(), ordered, known, host_limit_bytes, effort)
    planner = Planner(asked, (), tell)
    limits = [int(share * planner.original.peak_bytes) for share in shares]
    for limit in limits:
        planner.at(limit)
    points = tuple(planner.points)
    return tuple(
        Fit(_best(planner, limit, None), planner.original, planner.without, limit, None, points, planner.tried)
        for limit in limits
    )


def _answer(planner: Planner, limit_bytes: int | None, limit_us: float | None) -> None:
    if limit_bytes is not None:
        planner.at(limit_bytes)
        return
    assert limit_us is not None
    low = sum(storage.bytes for storage in planner.problem.storages if storage.pinned)
    enough = min(found.peak_bytes for found in planner.points if found.step_us <= limit_us)
    for _ in range(HALVINGS):
        middle = (low + enough) // 2
        planner.at(middle)
        reached = min(found.peak_bytes for found in planner.points if found.step_us <= limit_us)
        if reached > middle:
            low = middle
        enough = reached
        if low >= enough:
            break


def _with(planner: Planner, one: Rewrite, limit_bytes: int | None, limit_us: float | None) -> Planner:
    """The planner with one more rewrite, where the answer is better with it."""
    try:
        other = Planner(planner.asked, (*planner.before, one), planner.tell)
    except RewriteError:
        return planner
    _answer(other, limit_bytes, limit_us)
    old, new = _best(planner, limit_bytes, limit_us), _best(other, limit_bytes, limit_us)
    better = _key(new, limit_bytes, limit_us) < _key(old, limit_bytes, limit_us)
    winner, loser = (other, planner) if better else (planner, other)
    for found in loser.points:
        winner._kept(found)
    winner.original, winner.without, winner.tried = planner.original, planner.without, planner.tried + other.tried
    return winner


def _best(planner: Planner, limit_bytes: int | None, limit_us: float | None) -> FitPoint:
    """What answers the question best; where nothing does, what is nearest to the limit."""
    return min(planner.points, key=lambda found: _key(found, limit_bytes, limit_us))


def _key(found: FitPoint, limit_bytes: int | None, limit_us: float | None) -> tuple[bool, float, float]:
    if limit_bytes is not None:
        over = found.peak_bytes > limit_bytes
        return (over, found.peak_bytes, found.step_us) if over else (over, found.step_us, found.peak_bytes)
    over = limit_us is not None and found.step_us > limit_us * (1 + 1e-12)
    return (over, found.step_us, found.peak_bytes) if over else (over, found.peak_bytes, found.step_us)


def _check_model(problem: Problem) -> None:
    if problem.memory_model != "runtime":
        raise RewriteError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model: rewrites want 'runtime'."
        )


def _check(
    limit_bytes: int | None, slowdown: float | None, kinds: Collection[str], host: int | None, effort: int
) -> None:
    if (limit_bytes is None) == (slowdown is None):
        raise OptionsError("a fit wants one question: memory_limit_bytes, or max_slowdown.")
    if limit_bytes is not None and limit_bytes < 0:
        raise OptionsError(f"memory_limit_bytes is {limit_bytes}; it is 0 or more.")
    if slowdown is not None and not 0 <= slowdown < float("inf"):
        raise OptionsError(f"max_slowdown is {slowdown}; it is 0 or more, 0.05 for five percent.")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise OptionsError(f"kinds has {', '.join(map(repr, unknown))}; known are {', '.join(map(repr, KINDS))}.")
    if host is not None and host < 0:
        raise OptionsError(f"host_limit_bytes is {host}; it is 0 or more.")
    if effort not in (0, 1, 2):
        raise OptionsError(f"effort is {effort}; it is 0, 1 or 2.")
