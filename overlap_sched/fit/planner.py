"""The two questions, answered: the shortest step within a memory limit, the lowest peak within a step limit.

Plans within a limit are values chosen along an order, the problem rewritten, ordered by the scheduler, judged::

    orders to start from     the original; the one with the lowest peak
      -> choices             what need not be kept, by several weights          greedy
      -> rewrites            recompute and offload, as values                   greedy, transform.apply
      -> runs                a few policies of the list scheduler               transform.search
      -> finish              all that the scheduler does, on the best           transform.search
      -> judged              valid, peak, step                                  judge

The original graph in its best order is a plan, too. What is tried is counted, nothing timed.

Some plans begin with a fission. Where nothing communicates, what runs in parts is the shortest that a plan which begins
so can be: recomputation and copies only add to it. So nothing more is looked for behind one that is too slow already.

Live bytes within a limit are not enough where they leave holes: what torch's caching allocator makes of plans counts.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import product

from overlap_sched.errors import OptionsError, OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fit.answer import Effect, Faster, Fit, FitPoint, Held, Question
from overlap_sched.fit.greedy import Greedy, rewrites_of
from overlap_sched.fit.state import LinkTime, LiveState
from overlap_sched.fit.tuning import TUNING
from overlap_sched.judge.validate import measure, violation
from overlap_sched.options import Options, options_given, replayed_allocator
from overlap_sched.peak_memory.best import best_order
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.driver import schedule
from overlap_sched.scheduler.restrictions import needed_bytes
from overlap_sched.scheduler.task import SAME_STEP, Reference, Task
from overlap_sched.simulate.allocator import Requests, requests_of
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import apply, host_bytes
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Fission, Rewrite
from overlap_sched.transform.search import Limit, finish, halve, run_policies, undominated

KINDS = ("recompute", "offload")
"""What may be done to values."""
FOUND = "a plan keeps the limit"
"""The progress line of each plan that does."""


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
            (:func:`overlap_sched.fx.fitting.batch_fissions`). Other rewrites are searched for behind those
            that promise most.
        effort: How much is tried: 0, 1 or 2.
        tell: Hears what is being done.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
        RewriteError: The problem is in another memory model.
        VerificationError: With ``options.strict``: what would otherwise be the reason for falling back.
    """
    question = Question(memory_limit, max_slowdown, "what the original order needs")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise OptionsError(f"kinds has {', '.join(map(repr, unknown))}; known are {', '.join(map(repr, KINDS))}.")
    if host_limit_bytes is not None and host_limit_bytes < 0:
        raise OptionsError(f"host_limit_bytes is {host_limit_bytes}; it is 0 or more.")
    if effort not in (0, 1, 2):
        raise OptionsError(f"effort is {effort}; it is 0, 1 or 2.")
    if problem.memory_model != "runtime":
        raise RewriteError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model: rewrites want 'runtime'."
        )
    options = options_given(options)
    ordered, names = tuple(kind for kind in KINDS if kind in kinds), None if rerun is None else frozenset(rerun)
    search = FitSearch(problem, prices, options, ordered, names, host_limit_bytes, effort, tell)
    needed = needed_bytes(LiveRanges(problem), problem.original_order, replayed_allocator(options))
    limit, fell_back, begun = question.limit(needed, search.start.without.step_us), None, tuple[FitPoint, ...]()
    try:
        begun = _search(search, limit, fissions, extra)
    except Exception as error:  # what fails here must not take the training job with it
        fell_back = f"{type(error).__name__}: {error}"
        if options.strict:
            raise VerificationError(f"fitting {problem.name!r} failed: {fell_back}") from error
        message = f"overlap_sched fits nothing in {problem.name!r}: {fell_back}"
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
        search.points = [search.start.without]
    best, held = held_best(search.points, limit, options)
    return Fit(
        best=best,
        original=search.original,
        without=search.start.without,
        limit_bytes=limit.bytes,
        limit_us=limit.us,
        points=tuple(search.points),
        tried=search.tried,
        fell_back=fell_back,
        held=held,
        effects=_effects(search, best, begun),
    )


class FitSearch:
    """All plans for one problem.

    Attributes:
        problem: As it was. prices: of new nodes. options: of the scheduler.
        kinds: What may be done: ``"recompute"``, ``"offload"``.
        rerun: Names of nodes that may run again; ``None``: by operator.
        host_limit_bytes: Pinned host memory at most; ``None``: no limit.
        effort: How much is tried. tell: hears what is being done.
        original: The graph as it was. start: plans of that begin here.
        points: The frontier: by ascending peak and descending step.
        tried: How many plans were made.
    """

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        options: Options,
        kinds: tuple[str, ...],
        rerun: frozenset[str] | None,
        host_limit_bytes: int | None = None,
        effort: int = 2,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Measure the graph as it is."""
        self.problem, self.prices, self.options, self.kinds, self.rerun = problem, prices, options, kinds, rerun
        self.host_limit_bytes, self.effort, self.tell = host_limit_bytes, effort, tell
        self.points: list[FitPoint] = []
        self.tried = 0
        self.original = self.begin_with(())
        self.start = Start(self, self.original)

    def begin_with(self, rewrites: Sequence[Rewrite]) -> FitPoint:
        """Return rewrites alone as a plan, in the order in which they leave the graph.

        Raises:
            RewriteError: They cannot be done.
        """
        problem = apply(self.problem, rewrites, self.prices) if rewrites else self.problem
        return self.keep(tuple(rewrites), problem, problem.original_order)

    def keep(self, rewrites: tuple[Rewrite, ...], problem: Problem, order: Order) -> FitPoint:
        """Judge a plan, and put it on the frontier, where it belongs there."""
        new, limit = point(rewrites, problem, order), self.host_limit_bytes
        if limit is None or new.host_bytes <= limit:
            self.points = undominated([*self.points, new])
        return new

    def within(self, limit_bytes: int) -> FitPoint | None:
        """Return the shortest step known within a limit."""
        fitting = [found for found in self.points if found.peak_bytes <= limit_bytes]
        return min(fitting, key=lambda found: (found.step_us, found.peak_bytes), default=None)


class Start:
    """A graph that plans begin with.

    Attributes:
        before: Rewrites that it comes of. problem: it.
        rerun: As of :class:`FitSearch`, with parts of what may run again.
        without: It in the best order without more rewrites.

    Where nothing communicates, what runs in parts stays in the order in which it is emitted.
    """

    def __init__(self, search: FitSearch, begun: FitPoint) -> None:
        """Schedule it."""
        self.search, self.before, self.problem = search, begun.rewrites, begun.problem
        self.rerun, fissions = search.rerun, [one for one in begun.rewrites if isinstance(one, Fission)]
        for one in fissions:
            if self.rerun is not None:
                self.rerun |= {one.part(name, p) for name in one.nodes if name in self.rerun for p in range(one.parts)}
        model = search.problem.memory_model
        self.options = replace(search.options, rewrites=(), memory_limit=None, memory_model=model)
        self._laid_out = bool(fissions) and not self.problem.collectives
        self._large = len(self.problem.nodes) > TUNING.large_nodes
        self.without = begun
        if not self._laid_out:
            self.without = search.keep(self.before, self.problem, schedule(self.problem, self.options).order)

    @cached_property
    def lowest(self) -> Order:
        """The order with the lowest peak that is found."""
        self.search.tell("looking for the order with the lowest peak")
        order = best_order(self.problem, effort=0 if self._large else min(self.search.effort, 1)).order
        self.search.keep(self.before, self.problem, order)
        return order

    def answer(self, limit: Limit) -> None:
        """Look for plans that answer the question."""
        if limit.bytes is not None:
            self.at(limit.bytes)
            return
        low = sum(storage.bytes for storage in self.problem.storages if storage.pinned)
        most = max(1, TUNING.halved_nodes // len(self.problem.nodes))

        def reach(middle: int) -> int:
            self.at(middle, limit.us or 0.0)
            return limit.best(self.search.points).peak_bytes

        halve(low, limit.best(self.search.points).peak_bytes, reach, most)

    def at(self, limit_bytes: int, enough_us: float = 0.0) -> FitPoint | None:
        """Look for plans within a limit; return the shortest known then. The graph as it is comes first.

        Args:
            limit_bytes: It.
            enough_us: Where a plan is as short as this, no other one is looked for.
        """
        self._order_alone(limit_bytes)
        best: tuple[float, tuple[Rewrite, ...], Problem] | None = None
        for found in self._plans(limit_bytes):
            self.search.tell(FOUND)
            if best is None or found[0] < best[0]:
                best = found
            if best[0] <= enough_us:
                break
        if best is not None:
            self._finish(best[1], best[2], limit_bytes)
        return self.search.within(limit_bytes)

    def _order_alone(self, limit_bytes: int) -> None:
        """The graph as it is, in an order within the limit, where there is one."""
        if self.search.within(limit_bytes) is not None or limit_bytes >= self.without.peak_bytes:
            return
        if self._laid_out or (self._large and self.search.kinds):
            return
        if point(self.before, self.problem, self.lowest).peak_bytes <= limit_bytes:
            self._finish(self.before, self.problem.renumbered(self.lowest), limit_bytes)

    def _finish(self, rewrites: tuple[Rewrite, ...], problem: Problem, limit_bytes: int) -> None:
        self.search.keep(rewrites, problem, finish(problem, problem.original_order, self.options, limit_bytes)[1].order)

    def _plans(self, limit_bytes: int) -> Iterator[tuple[float, tuple[Rewrite, ...], Problem]]:
        """Plans within the limit and their steps, from each order by each recipe; of large graphs from one alone.

        Orders: the original, and the one with the lowest peak where that is another. Recipes: what a copy's time counts
        as, and what is high.
        """
        asked, some = self.search, False
        aims = (
            TUNING.aims[: asked.effort + 1] if self.problem.collectives or "offload" in asked.kinds else TUNING.aims[:1]
        )
        both = set(asked.kinds) >= set(KINDS) and not self._large
        recipes = list(
            product(TUNING.weights if both else TUNING.weights[:1], TUNING.high[:1] if self._large else TUNING.high)
        )
        for lowest in (False, True):
            if lowest and (self._laid_out or (some and self._large) or self.lowest == self.problem.original_order):
                return
            problem = self.problem.renumbered(self.lowest if lowest else self.problem.original_order)
            for weight, high in recipes:
                link = LinkTime(asked.prices.host) if "offload" in asked.kinds else None
                state = LiveState(problem, limit_bytes, self.rerun)
                greedy = Greedy(state, link, asked.host_limit_bytes, asked.kinds, weight, high)
                for aim in aims:  # what has been chosen for one stays for the next
                    found = self._choose(greedy, limit_bytes, int(limit_bytes * aim))
                    if found is not None:
                        some = True
                        asked.tried += 1
                        yield found
                    elif not state.fits:  # what cannot be brought to the limit cannot be brought below it
                        break

    def _choose(
        self, greedy: Greedy, limit_bytes: int, aim_bytes: int
    ) -> tuple[float, tuple[Rewrite, ...], Problem] | None:
        """Rewrites that bring an order within the limit, what they make, its best step; ``None``: none do."""
        state = greedy.state
        greedy.run(aim_bytes)
        made = rewrites_of(state)
        try:
            problem = apply(state.problem, made, self.search.prices)
        except RewriteError:
            return None
        rewrites, task = (*self.before, *made), Task(problem, self.options, limit_bytes)
        best = task.measured(problem.original_order)
        within = best.peak_bytes <= limit_bytes
        if within and problem.collectives:
            reference = Reference(problem, problem.original_order, task.live_ranges)
            best = run_policies(reference, limit_bytes, best).best or best
        self.search.keep(rewrites, problem, best.order)
        return (best.step_us, rewrites, problem) if within else None


def _search(
    search: FitSearch, limit: Limit, fissions: Sequence[Fission], extra: Sequence[Rewrite | tuple[Rewrite, ...]]
) -> tuple[FitPoint, ...]:
    """Look for plans from the graph as it is, then from what others begin with; return the fissions, each alone."""
    start, begun = search.start, list[FitPoint]()
    if limit.bytes is not None:
        start.at(limit.bytes)
    for one in fissions:
        with suppress(RewriteError):
            begun.append(search.begin_with((one,)))
            search.tried += 1
            if limit.bytes is not None and begun[-1].peak_bytes <= limit.bytes:
                search.tell(FOUND)
    for plan in _promising(search, limit, begun):
        start = _better_start(start, plan, limit, limit.key(limit.best(search.points)))
    if limit.us is not None:  # what is in parts is quickly found, and leaves less to look for
        search.start.answer(limit)
    for more in extra:
        best = limit.key(limit.best(search.points))
        with suppress(RewriteError):
            plan = search.begin_with((*start.before, *(more if isinstance(more, tuple) else (more,))))
            start = _better_start(start, plan, limit, best)
    _lower(start, limit)
    return tuple(begun)


def _promising(search: FitSearch, limit: Limit, begun: Sequence[FitPoint]) -> list[FitPoint]:
    """Return behind which fissions to search, the most promising first.

    Within a memory limit: the fastest of those that do not yet keep it, or all where there is communication to hide.
    Within a step limit: those with the lowest peaks.
    """
    best = limit.best(search.points)

    def may_win(plan: FitPoint) -> bool:
        if limit.bytes is None:
            return plan.step_us <= (limit.us or 0.0)
        shorter = best.peak_bytes > limit.bytes or plan.step_us < best.step_us * (1 - SAME_STEP)
        return plan.peak_bytes > limit.bytes and shorter  # one that keeps it is a plan as it is

    kept = [plan for plan in begun if search.problem.collectives or may_win(plan)]
    by_step = limit.bytes is not None
    kept.sort(key=lambda one: (one.step_us, one.peak_bytes) if by_step else (one.peak_bytes, one.step_us))
    return kept[: search.effort]


def _better_start(start: Start, begun: FitPoint, limit: Limit, best: tuple[bool, float, float]) -> Start:
    """Look for plans with other rewrites to begin with; return that start where the answer is better with them."""
    other = Start(start.search, begun)
    other.answer(limit)
    return other if limit.key(limit.best(start.search.points)) < best else start


def _lower(start: Start, limit: Limit) -> None:
    """Look for plans of fewer live bytes, by as many as the best lacks, until one runs on a device of the limit."""
    search, below = start.search, limit.bytes or 0
    for _ in range(TUNING.lowered):
        held = held_best(search.points, limit, search.options)[1]
        if held is None or not held.over_bytes:
            break
        below -= held.over_bytes
        search.tell(f"looking for a plan of {below:,} bytes, which the allocator may hold within the limit")
        start.at(below)


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
    if settings is None:
        return best, None
    if limit.bytes is None or best.peak_bytes > limit.bytes:
        return best, Held(_requests(best).replayed(settings).peak_reserved_bytes)
    within = sorted((one for one in points if one.peak_bytes <= limit.bytes), key=lambda one: one.step_us)
    lacking, faster = [], None
    for one in within:
        requests = _requests(one)
        if requests.fits(limit.bytes, settings):
            return one, Held(requests.replayed(settings).peak_reserved_bytes, 0, faster)
        lacking.append((requests.smallest_capacity(settings, limit.bytes) - limit.bytes, one, requests))
        faster = faster or Faster(one.step_us, lacking[0][0])
    over_bytes, best, requests = min(lacking, key=lambda each: each[0])
    reserved = requests.replayed(settings).peak_reserved_bytes
    return best, Held(reserved, over_bytes, None if best is within[0] else faster)


def _requests(plan: FitPoint) -> Requests:
    return requests_of(LiveRanges(plan.problem), plan.order)


def _effects(search: FitSearch, best: FitPoint, begun: Sequence[FitPoint]) -> tuple[Effect, ...]:
    """Return what the fissions do that a plan begins with, one after the other."""
    known, before = {plan.rewrites: plan for plan in begun}, search.original
    found: list[Effect] = []
    for k, one in enumerate(best.rewrites):
        if not isinstance(one, Fission):
            break
        rewrites = best.rewrites[: k + 1]
        after = known[rewrites] if rewrites in known else search.begin_with(rewrites)
        more_us = sum(after.problem.compute_us) - sum(before.problem.compute_us)
        found.append(Effect(one, before.peak_bytes - after.peak_bytes, more_us))
        before = after
    return tuple(found)


def point(rewrites: tuple[Rewrite, ...], problem: Problem, order: Order) -> FitPoint:
    """Return a plan as the judges see it.

    Raises:
        VerificationError: Its order is not valid: a bug.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise VerificationError(f"a plan for {problem.name!r} is not valid: {broken}. This is a bug: please report it.")
    measured = measure(problem, order)
    line, host = measured.timeline, host_bytes(problem, order)
    return FitPoint(rewrites, problem, tuple(order), line.step_us, line.exposed_us, max(measured.profile), host)
