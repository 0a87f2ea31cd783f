"""MODeL's integer program for the order of a window, in cumulative form.

After Steiner, Elhoushi, Kahn, Hegarty, "MODeL: Memory Optimizations for Deep Learning" (ICML 2023). Its variables say
for each tensor and step whether it is created (C) or preserved (P). Here ``y[v, t]`` says whether node ``v`` has run
when step ``t`` ends, so ``C = y[v, t] - y[v, t - 1]``, and ``live[s, t]`` (C or P) is bound from below only::

    one node a step      sum over v of y[v, t] = t + 1;    y[v, t] >= y[v, t - 1]
    precedence           y[v, t] <= y[u, t - 1]            for u before v
    preserved            live[s, t] >= y[maker, t] - y[user, t - 1]     for each user; for one user that is
                         exact, without a variable
    peak                 peak >= sum of bytes x live[s, t] + what lives for its own step only,   for each t; minimised

MODeL's reductions, where they went:

    ASAP/ALAP spans           y is 0 before as many steps as v has ancestors, 1 once only descendants are left
    maximum useful lifetimes  live is 0 before the maker's first and after the users' last step: no variable
    forced preservation       live is 1 from the maker's last to the first possible last use: no variable
    precedence pruning        of u before v only where no node between says it already; not where the spans say it
    scaling                   sizes are divided by their greatest common divisor

Unlike MODeL's, a step runs one node, so spans are tight, and locations come after the order
(:mod:`overlap_sched.peak_memory.addresses.plan`), where fragmentation stays at zero without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.walk import Forward, run_all
from overlap_sched.problem.precedence import reached

Term = tuple[int, int]
"""(variable, coefficient)."""


@dataclass
class Linear:
    """A constant plus coefficients times variables."""

    constant: int = 0
    terms: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Linear", factor: int = 1) -> "Linear":
        """Add so many times another one; itself."""
        self.constant += factor * other.constant
        for variable, coefficient in other.terms.items():
            self.terms[variable] = self.terms.get(variable, 0) + factor * coefficient
        return self

    def plus(self, other: "Linear", factor: int = 1) -> "Linear":
        """The same as a new one."""
        return Linear(self.constant, dict(self.terms)).add(other, factor)


@dataclass(frozen=True)
class Program:
    """Minimise the peak over binary variables.

    Attributes:
        variables: How many there are; each is 0 or 1. hints: their values in the order so far.
        rows: ``sum of coefficient x variable >= bound``. equal_rows: the same with ``=``.
        steps: Per step what is live, in units of ``unit_bytes``: the peak is the largest.
        unit_bytes: Greatest common divisor of all sizes.
        window: The nodes. ran: per node and step, ``y``.
    """

    variables: int
    hints: Sequence[int]
    rows: Sequence[tuple[Sequence[Term], int]]
    equal_rows: Sequence[tuple[Sequence[Term], int]]
    steps: Sequence[Linear]
    unit_bytes: int
    window: Sequence[int]
    ran: Mapping[tuple[int, int], Linear]

    def order(self, values: Sequence[float]) -> list[int]:
        """The window's nodes in the order that the variables say."""
        steps = len(self.window)

        def when(v: int) -> int:
            return sum(self._value(self.ran[v, t], values) < 0.5 for t in range(steps))

        return sorted(self.window, key=when)

    def _value(self, linear: Linear, values: Sequence[float]) -> float:
        return linear.constant + sum(c * values[x] for x, c in linear.terms.items())


def program_of(graph: MemoryGraph, order: Sequence[int], begin: int, end: int) -> Program:
    """The program of ``order[begin:end]``; outside the window the order stays."""
    return _Builder(graph, order, begin, end).program()


class _Builder:
    def __init__(self, graph: MemoryGraph, order: Sequence[int], begin: int, end: int) -> None:
        self.graph, self.window = graph, list(order[begin:end])
        self.place = {v: at for at, v in enumerate(self.window)}
        walk = Forward(graph)
        run_all(walk, order[:begin])
        self.live_before = walk.live_bytes
        self.begun = {*graph.first, *order[:begin]}
        self.hints: list[int] = []
        self.rows: list[tuple[list[Term], int]] = []
        self._spans()
        self.ran: dict[tuple[int, int], Linear] = {}

    def _spans(self) -> None:
        """First and last step of each node."""
        inside, n = set(self.window), len(self.window)
        before = {v: [u for u in self.graph.before[v] if u in inside] for v in self.window}
        after = {v: [w for w in self.graph.after[v] if w in inside] for v in self.window}
        self.before = before
        ancestors = {v: reached([v], before.__getitem__) for v in self.window}
        self.asap = {v: len(ancestors[v]) for v in self.window}
        self.alap = {v: n - 1 - len(reached([v], after.__getitem__)) for v in self.window}
        self.needed = {  # direct predecessors that no other one implies
            v: [u for u in before[v] if not any(u in ancestors[w] for w in before[v])] for v in self.window
        }

    def variable(self, hint: int) -> Linear:
        self.hints.append(hint)
        return Linear(0, {len(self.hints) - 1: 1})

    def program(self) -> Program:
        n = len(self.window)
        for v in self.window:
            for t in range(-1, n):
                fixed = 0 if t < self.asap[v] else 1 if t >= self.alap[v] else None
                at = Linear(fixed) if fixed is not None else self.variable(int(t >= self.place[v]))
                self.ran[v, t] = at
        equal = []
        for t in range(n):
            total = Linear()
            for v in self.window:
                total.add(self.ran[v, t])
                self.at_least(self.ran[v, t], self.ran[v, t - 1])
                for u in self.needed[v]:
                    self.at_least(self.ran[u, t - 1], self.ran[v, t])
            if total.terms:
                equal.append((list(total.terms.items()), t + 1 - total.constant))
        steps, unit = self._steps()
        return Program(len(self.hints), self.hints, self.rows, equal, steps, unit, self.window, self.ran)

    def at_least(self, left: Linear, right: Linear) -> None:
        """A row: left is at least right."""
        row = left.plus(right, -1)
        terms = [(x, c) for x, c in row.terms.items() if c]
        if terms:
            self.rows.append((terms, -row.constant))

    def _steps(self) -> tuple[list[Linear], int]:
        """Return what is live at each step, in units of the common divisor."""
        graph, n = self.graph, len(self.window)
        parts: list[tuple[int, list[Linear]]] = []
        base = self.live_before
        for s in dict.fromkeys(s for v in self.window for s in (*graph.makes[v], *graph.uses[v])):
            if graph.size[s]:
                lives = self._lives(s)
                base -= 0 if graph.maker[s] in self.place else graph.size[s]
                parts.append((graph.size[s], lives))
        for v in self.window:
            if graph.passing_bytes[v]:
                parts.append((graph.passing_bytes[v], [self.ran[v, t].plus(self.ran[v, t - 1], -1) for t in range(n)]))
        unit = gcd(base, *(size for size, _ in parts)) or 1
        steps = []
        for t in range(n):
            live = Linear(base // unit)
            for size, lives in parts:
                live.add(lives[t], size // unit)
            steps.append(live)
        return steps, unit

    def _lives(self, s: int) -> list[Linear]:
        """Per step, whether a storage is live."""
        graph, n = self.graph, len(self.window)
        maker = graph.maker[s]
        made = [self.ran[maker, t] if maker in self.place else Linear(1) for t in range(n)]
        inside = [u for u in graph.users[s] if u in self.place]
        stays = any(u not in self.place and u not in self.begun for u in graph.users[s]) or not graph.users[s]
        if stays or (len(inside) == 1 and inside[0] == maker):
            return made if stays else [made[t].plus(self.ran[maker, t - 1], -1) for t in range(n)]
        if len(inside) == 1:
            return [made[t].plus(self.ran[inside[0], t - 1], -1) for t in range(n)]
        last_possible = max(self.alap[u] for u in inside)
        surely_until = max(self.asap[u] for u in inside)
        first = self.asap[maker] if maker in self.place else 0
        surely_from = self.alap[maker] if maker in self.place else 0
        lives = []
        for t in range(n):
            if first <= t <= last_possible and not surely_from <= t <= surely_until:
                made_then = t >= self.place.get(maker, -1)
                live = self.variable(int(made_then and any(self.place[u] >= t for u in inside)))
                for u in inside:
                    if u != maker:
                        self.at_least(live.plus(self.ran[u, t - 1]), made[t])
            else:
                live = Linear(int(first <= t <= last_possible))
            lives.append(live)
        return lives
