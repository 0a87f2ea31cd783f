"""What stages work on: what is asked for (:class:`Task`), a reference order and the best order (:class:`Candidate`).

A reference order comes with keys that say how urgent each node is. They are measured along that order, in microseconds
of *compute done* (a coordinate that stalls do not advance) or of *time left*:

latest start
    How much compute may be done before the node must run for nobody to wait for it. A collective's is packed backward
    on its group's stream, from when its first user must start::

        compute done   0 --------- latest start(u) -- latest start(v) ------ v's first user in the reference order
        group stream                     |====== u ========||======= v =======|

    A cheap node that prepares a launch (a cast before an all_gather) inherits the latest start of what it
    prepares; an expensive one stays in its place. What frees memory once it has completed (reduce_scatter, all_reduce)
    starts in its place at the latest, though nobody may need its result before the end: what it frees admits gathers.
bottom level
    The longest path from the node to the end, communication included. A node whose bottom level does not fit into the
    time that is left makes the step longer if anything runs before it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import PinError
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, NodeId, Order, Position, Problem
from overlap_sched.problem.pins import pin_pairs
from overlap_sched.problem.precedence import Pair, by_key, launch_pairs, positions
from overlap_sched.simulate.clock import StepTimes
from overlap_sched.simulate.ledger import LiveRanges


@dataclass(frozen=True)
class Tuning:
    """The numbers that tune the scheduler; all are parts or counts, so that graphs of every size and time are alike.

    Behind them, where measured: how much longer steps become with another value, at most and on how many of 45 rows
    (Llama-3-8B and DeepSeek-V3 backward, small FSDP steps and chains, at the original peak and 5 % above).
    """

    cheap: float = 2e-4
    """Compute of at most this part of all compute may be moved to prepare a launch. 0: +2.3 %, 3 rows."""
    look: int = 4
    """How many of the most urgent nodes of a stream are looked at in one step. 1: +1.2 %, 2 rows."""
    windows: tuple[int, int, int] = (8_000, 1_000, 250)
    """How many positions ahead compute is looked for, by policy. Only 1,000: +3.5 %, 1 row."""
    beside: float = 0.1
    """Under contention, by what part of all compute before its latest start (0.1) one is launched beside another's."""
    far_nodes: tuple[int, int] = (40, 160)
    """A collective with more open nodes before it than 40 is far; they are counted up to 160: the price of a look."""
    memory_effort: int = 2
    """Most effort that goes into the order with the lowest peak, each worth twice as much: the price of that order."""
    run_nodes: int = 15_000
    """A unit of effort is one run on a graph of up to so many nodes, less on a larger one: the price of effort."""
    goal_percent: float = 1.5
    """Runs end once the step is within this, divided by the effort, of the simple bound: the price of the pass."""
    near_goals: float = 4
    """Within so many times that of a bound that knows the end of each stream, two runs that end alike are enough.
    Always enough: +5.5 %, 3 of 15 graphs of several chains; 0: none."""
    second_path: float = 0.08
    """There are several chains if the longest path beside the longest path is at least this part. 0.5: +6.5 %, 3 of 15
    graphs of several chains."""
    beam_states: int = 1_000
    """A unit of effort is worth so many states of the beam search, divided by nodes. 250: +3.6 %, 5 rows."""
    shift_positions: int = 2_000
    """A shift goes no further: enough time for any error, and it keeps large graphs linear. 200: +2.6 %, 3 rows."""
    relink_percents: tuple[int, ...] = (30, 50, 70, 90)
    """Of the way from the reference to the best order. Only 50: +3.8 %, 2 rows."""
    relink_gain: float = 0.02
    """A first round that gains less of the step is not taken. 0: no row, and 7 % more time."""
    relink_more_gain: float = 0.002
    """A later round that gains less is the last. 0.02: +1.4 %, 2 rows."""
    stall_part: float = 1e-4
    """A stall below this part of the step is left as it is. 0.001: +0.5 %, 2 rows."""
    stall_grain: float = 0.1
    """Compute of less than this part of a stall is not worth a move. 0: +1.6 %, 0.5: +0.5 %, 3 rows."""
    stall_positions: int = 1_000
    """Compute is looked for so many positions in front of a launch. 250: +0.4 %, 3 rows."""
    stall_nodes: int = 24
    """What moves with one node, at most: weight gradients are needed by few. 6: -0.1 %, 2 rows."""
    stall_queue: int = 6
    """So many collectives are passed in a queue, the last first. 1: +1.0 %, 2 rows."""
    stall_tried_nodes: int = 1_000_000
    """A unit of effort is so many nodes of orders that are tried. 250,000: +0.8 %, 2 rows."""
    budget_parts: tuple[float, ...] = (0.85, 0.55, 0.15, 0.05)
    """Tighter budgets for a device, as parts of the way from what is live in the reference order to the budget: the
    price of two runs each."""
    apart_stalls: tuple[float, ...] = (0.0, 0.5, 1.0)
    """For what part of its time compute waits for a launch that it would delay, where groups are kept apart: the
    price of a run each."""
    follow_steps: int = 2_000_000
    """Of the search for an order with another rank's launches that needs less: the price is a second or two."""


TUNING = Tuning()


class LaunchKey(NamedTuple):
    """Of a collective and of what prepares it, in the queue of its stream: the smallest is launched first."""

    latest_start_us: float
    position: Position
    node: NodeId


class PathKey(NamedTuple):
    """Of a node by its longest path to the end: the smallest, the longest path, first."""

    minus_bottom_level_us: float
    position: Position
    node: NodeId


@dataclass(frozen=True)
class Priorities:
    """Per node id unless said otherwise, in microseconds; see the module.

    Attributes:
        bottom_level_us: See the module.
        stream: The group of the collective that it is or whose launch it prepares; else ``None``.
        launch_keys: Of what has a stream; else ``None``. path_keys: of every node.
        by_latest_start: Per group (not per node) its collectives.
        stream_us: Per group the time of all of them. behind_us: per group, no less comes behind any of them.
        total_us: All compute.
        critical_path_us: Longest path of the graph, communication included: no order is shorter.
    """

    bottom_level_us: list[float]
    stream: list[str | None]
    launch_keys: list[LaunchKey | None]
    path_keys: list[PathKey]
    by_latest_start: dict[str, list[NodeId]]
    stream_us: dict[str, float]
    behind_us: dict[str, float]
    total_us: float
    critical_path_us: float


def priorities(problem: Problem, order: Sequence[int], frees: Sequence[bool], prepares: bool) -> Priorities:
    """All keys along a reference order: one sweep forward, one backward.

    Args:
        problem: What the order is of.
        order: A valid order.
        frees: Per node id, see :attr:`Reference.frees`.
        prepares: Is compute that takes time moved to prepare a launch? Else only what takes none is.
    """
    compute = problem.compute_us
    done_before, done = [0.0] * len(compute), 0.0
    for v in order:
        done_before[v] = done
        done += compute[v]
    cheap_us = TUNING.cheap * done if prepares else 0.0
    latest, bottom, stream = _backward(problem, order, done_before, done, cheap_us, frees)
    by_latest_start: dict[str, list[NodeId]] = {group: [] for group in problem.groups}
    stream_us, behind_us = dict.fromkeys(problem.groups, 0.0), dict.fromkeys(problem.groups, math.inf)
    for v in sorted(problem.collectives, key=latest.__getitem__):
        by_latest_start[problem.nodes[v].group or ""].append(v)
    for v in problem.collectives:
        group, paths = problem.nodes[v].group or "", [bottom[w] for w in problem.waits.get(v, ())]
        stream_us[group] += problem.nodes[v].time_us
        behind_us[group] = min(behind_us[group], max(paths, default=0.0))
    launch_keys: list[LaunchKey | None] = [None] * len(compute)
    path_keys = [PathKey(0.0, 0, 0)] * len(compute)
    for at, v in enumerate(order):
        path_keys[v] = PathKey(-bottom[v], at, v)
        if stream[v] is not None:
            launch_keys[v] = LaunchKey(latest[v], at, v)
    return Priorities(
        bottom_level_us=bottom,
        stream=stream,
        launch_keys=launch_keys,
        path_keys=path_keys,
        by_latest_start=by_latest_start,
        stream_us=stream_us,
        behind_us=behind_us,
        total_us=done,
        critical_path_us=max(bottom),
    )


def _backward(
    problem: Problem, order: Sequence[int], done_before: list[float], end: float, cheap: float, frees: Sequence[bool]
) -> tuple[list[float], list[float], list[str | None]]:
    """Latest starts, bottom levels, and for which stream a node is launched (or prepares a launch)."""
    nodes, successors = problem.nodes, problem.successors
    latest, bottom = [0.0] * len(nodes), [0.0] * len(nodes)
    launch = [math.inf] * len(nodes)  # the latest start of a launch that the node is or prepares
    stream: list[str | None] = [None] * len(nodes)  # and its group
    compute = problem.compute_us
    on_stream: dict[str | None, float] = {}  # the latest start of what follows on the group's stream
    for v in reversed(order):
        node, us = nodes[v], compute[v]
        if node.kind is Kind.COLLECTIVE:
            needed, path = on_stream.get(node.group, end), 0.0
            for w in successors[v]:
                if nodes[w].collective == v:
                    needed = min(needed, latest[w])
                    path = max(path, bottom[w])
                else:  # needs the launch only
                    needed = min(needed, latest[w] + node.time_us)
                    bottom[v] = max(bottom[v], bottom[w])
            bottom[v] = max(bottom[v], path + node.time_us)
            latest[v] = on_stream[node.group] = needed - node.time_us
            if frees[v]:
                latest[v] = min(latest[v], done_before[v])
            launch[v], stream[v] = latest[v], node.group
            continue
        needed, path, prepared, group = end, 0.0, math.inf, None
        for w in successors[v]:
            if latest[w] < needed:
                needed = latest[w]
            if bottom[w] > path:
                path = bottom[w]
            if launch[w] < prepared:
                prepared, group = launch[w], stream[w]
        bottom[v] = path + us
        if node.kind is Kind.WAIT:
            latest[v] = needed
        elif us > cheap:
            latest[v] = done_before[v]
        elif prepared < math.inf:
            latest[v] = launch[v] = prepared - us
            stream[v] = group
        else:
            latest[v] = min(done_before[v], needed - us) if us else needed
    return latest, bottom, stream


class Reference:
    """A valid order; runs are scheduled from it and fall back on it.

    Attributes:
        live_ranges, times: What its memory and its time share with all other orders.
        problem: What is scheduled.
        order: Node ids. position: its inverse, per node id.
        users: Per storage, the positions of the nodes that use it, ascending.
    """

    def __init__(
        self,
        problem: Problem,
        order: Sequence[int],
        live_ranges: LiveRanges | None = None,
        times: StepTimes | None = None,
    ) -> None:
        """Index an order that is known to be valid; ``live_ranges``, ``times``: of the problem, if already made."""
        self.live_ranges, self.times = live_ranges or LiveRanges(problem), times or StepTimes(problem)
        self.problem, self.order, self.position = problem, list(order), positions(order)
        self.users: list[list[int]] = [[] for _ in problem.storages]
        for at, v in enumerate(self.order):
            for s in problem.nodes[v].use:
                self.users[s].append(at)
        self._priorities = dict[bool, Priorities]()

    def reordered(self, order: Sequence[int]) -> "Reference":
        """Return another valid order of the same problem."""
        return Reference(self.problem, order, self.live_ranges, self.times)

    @cached_property
    def profile(self) -> npt.NDArray[np.int64]:
        """Bytes live at each position."""
        return self.live_ranges.profile(self.order)

    def priorities(self, prepares: bool = True) -> Priorities:
        """How urgent each node is along this order, with cheap compute moved to prepare launches or without."""
        if prepares not in self._priorities:
            self._priorities[prepares] = priorities(self.problem, self.order, self.frees, prepares)
        return self._priorities[prepares]

    @cached_property
    def frees(self) -> list[bool]:
        """Per node id: is it a collective that uses more than it allocates, so that memory is free once it is done?"""
        storages = self.problem.storages
        return [
            node.kind is Kind.COLLECTIVE
            and sum(storages[s].bytes for s in node.use if not storages[s].pinned)
            > sum(storages[s].bytes for s in node.alloc)
            for node in self.problem.nodes
        ]

    @cached_property
    def costs(self) -> list[bool]:
        """Per node id: does running it take time on some stream, or memory? Views and waits do not."""
        return [
            node.kind is Kind.COLLECTIVE or (node.kind is not Kind.WAIT and (node.time_us > 0 or kept > 0))
            for node, kept in zip(self.problem.nodes, self.live_ranges.kept_bytes, strict=True)
        ]


SAME_STEP = 1e-9
"""Relative: steps closer than this differ by rounding, and the lower peak decides."""


Reason = Literal[
    "reference", "latest start", "frees memory", "beside another", "no stall", "searched", "deferred", "original"
]
"""Why a collective was launched where it was:

- ``reference``: it was the next node of the order that the scheduler started from, or of one that it followed;
- ``latest start``: its latest start would have passed while the next compute ran;
- ``frees memory``: the same, and it frees memory once it has completed (a reduce_scatter);
- ``beside another``: under contention, a collective of another link is in flight, so that it slows compute no more;
- ``no stall``: every other ready node would have stalled;
- ``deferred``: its compute was deferred behind a launch that it hides;
- ``searched``: of all orders of a small graph that were searched, the best has it there;
- ``original``: the original order was kept.
"""


class Work(NamedTuple):
    """Effort, counted rather than timed: the same on every machine."""

    runs: int = 0
    rescored: int = 0
    """Nodes put into the sorted sets."""
    updates: int = 0
    """Range queries and updates on the completion profile."""
    looked: int = 0
    """Nodes looked at ahead of a launch, and states of the beam search."""

    def plus(self, *more: "Work") -> "Work":
        """All together."""
        return Work(*map(sum, zip(self, *more, strict=True)))


NO_WORK = Work()


class Refusal(NamedTuple):
    """For people: so many bytes above the budget where that is worst, and the node at whose step."""

    over_bytes: int
    node: NodeId


@dataclass(frozen=True)
class Candidate:
    """A valid order within the budget.

    Attributes:
        order: Node ids.
        step_us, peak_bytes: Its step time and its peak: true after every stage.
        reasons: Per collective, why it was launched where it was; empty: the order was not made by us.
        refusals: Per collective that the budget ever refused: the first time.
        work: What it took to come to it.
    """

    order: Order
    step_us: float
    peak_bytes: int
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    work: Work = NO_WORK

    def beats(self, other: "Candidate") -> bool:
        """Is its step shorter, or as long with a lower peak?"""
        if self.step_us < other.step_us * (1 - SAME_STEP):
            return True
        return self.step_us <= other.step_us * (1 + SAME_STEP) and self.peak_bytes < other.peak_bytes

    def or_better(self, found: "Candidate", work: Work) -> "Candidate":
        """The better one of both, after the work that finding the other took."""
        return replace(found if found.beats(self) else self, work=self.work.plus(work))


class SchedulerRun(NamedTuple):
    """What a run of the list scheduler took, and what it made; ``None``: it was given up."""

    work: Work
    made: Candidate | None = None


@dataclass(frozen=True)
class Task:
    """What is asked for.

    Attributes:
        problem: What to schedule.
        options: How.
        base_bytes: The peak that headroom is counted from.
        like: An order whose launch sequence all others keep; ``None``: they keep what the options say.
    """

    problem: Problem
    options: Options
    base_bytes: int
    like: Order | None = None

    @cached_property
    def live_ranges(self) -> LiveRanges:
        """The live ranges that the memory of all orders shares."""
        return LiveRanges(self.problem)

    @cached_property
    def step_times(self) -> StepTimes:
        """How long orders take."""
        return StepTimes(self.problem)

    @cached_property
    def limit(self) -> npt.NDArray[np.int64]:
        """The budget in bytes: one value, or one per position (``options.budget``)."""
        headroom = min(headroom_bytes(self.options.headroom, self.base_bytes), MAX_TOTAL_BYTES)
        if self.options.budget == "profile":
            return self.live_ranges.profile(self.problem.original_order) + headroom
        return np.array(self.base_bytes + headroom, dtype=np.int64)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Nodes that must run before others: launches that keep their order, and what keeps pins."""
        kept = self.options.preserve_collective_order if self.like is None else "all"
        return (*launch_pairs(self.problem, self.like or self.problem.original_order, kept), *self.pins)

    @cached_property
    def pins(self) -> tuple[Pair, ...]:
        """Those of :attr:`pairs` that keep pins."""
        return pin_pairs(self.problem, self.options.pins)

    @cached_property
    def nearest(self) -> Order:
        """The original order, or the nearest that keeps all :attr:`pairs`; it may be above the budget.

        Raises:
            PinError: There is none.
        """
        original = self.problem.original_order
        found = original if self.keeps(original) else by_key(self.problem, self.pairs, original)
        if found is None:
            raise PinError(
                f"pins contradict preserve_collective_order={self.options.preserve_collective_order!r}: no order keeps "
                "both. Leave one of the two out."
            )
        return found

    def limit_after(self, best: Candidate) -> npt.NDArray[np.int64]:
        """The budget of what only polishes an order: no more than its peak, or that of the base, needs anyway."""
        return np.minimum(self.limit, max(best.peak_bytes, self.base_bytes))

    def reference(self, order: Order) -> Reference:
        """Return a valid order within the budget, for runs to start from."""
        return Reference(self.problem, order, self.live_ranges, self.step_times)

    def measured(self, order: Order) -> Candidate:
        """A valid order as it is."""
        return Candidate(order, self.step_times.of(order), int(self.live_ranges.profile(order).max()))

    def remeasured(self, candidate: Candidate, order: Order) -> Candidate:
        """The candidate with its nodes in another valid order."""
        moved = self.measured(order)
        return replace(candidate, order=moved.order, step_us=moved.step_us, peak_bytes=moved.peak_bytes)

    @property
    def may_stay(self) -> bool:
        """May the original order be taken? Another launch sequence may be asked for, or pins that it breaks."""
        original = self.problem.original_order
        return self.like is None and self.keeps(original) and self.within_budget(original)

    def keeps(self, order: Order) -> bool:
        """Does a valid order keep all :attr:`pairs`?"""
        if not self.pairs:
            return True
        position = positions(order)
        return all(position[u] < position[v] for u, v in self.pairs)

    def within_budget(self, order: Order) -> bool:
        """Does a valid order keep to the budget?"""
        return bool((self.live_ranges.profile(order) <= self.limit).all())


@dataclass(frozen=True)
class Stage:
    """One of the steps.

    Attributes:
        name: By which it is left out.
        purpose: What it is for, in one line.
        run: The step, from a reference order and the best so far; what it cannot improve stays as it was.
    """

    name: str
    purpose: str
    run: Callable[[Task, Reference, Candidate], Candidate]


@dataclass(frozen=True)
class Stages:
    """All that is done, in this order."""

    all: tuple[Stage, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each."""
        return tuple(stage.name for stage in self.all)

    def without(self, *names: str) -> "Stages":
        """All but those of such names.

        Raises:
            ValueError: There is no such stage.
        """
        if unknown := set(names).difference(self.names):
            raise ValueError(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(self.names)}")
        return Stages(tuple(stage for stage in self.all if stage.name not in names))

    def each(self, change: Callable[[Stage], Stage]) -> "Stages":
        """With another in the place of each."""
        return Stages(tuple(map(change, self.all)))

    def run(self, task: Task, reference: Reference, best: Candidate) -> Candidate:
        """Return the best order that they find, one after the other, from a valid reference order within the budget.

        ``best``: an order that stays where none is better; its work does not count.
        """
        base = tuple(reference.order)
        if base != best.order and (start := task.measured(base)).beats(best):
            best = start
        best = replace(best, work=NO_WORK)
        for stage in self.all if task.problem.collectives else ():
            best = stage.run(task, reference, best)
        return best
