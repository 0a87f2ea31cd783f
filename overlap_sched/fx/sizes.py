"""Plain numbers for sizes that have none: hints for times, and for memory the largest that the graph's asserts admit.

A dynamic size has the hint with which it was traced. A data-dependent size (unbacked: ``u0`` of ``.item()``
or ``nonzero``) has limits at most. They come from

- ranges in torch's ``ShapeEnv``, and what it has concluded of equal sizes;
- run-time asserts: deferred ones in the ``ShapeEnv``, and nodes of the graph;
- shapes: no dimension of a tensor is below zero.

An assertion is kept as a sum that is zero or less: ``u0 <= s0``, with 4,096 for ``s0``, as ``u0 - 4096``. Its terms are
symbols, or whole expressions where it is not linear (``u0*u1``). From it follows an interval of each of its symbols;
and a bound of any sum that it is a part of: of ``u0 + u1`` where that very sum is asserted.

For times a size has the middle of its interval, so that ``u0`` and ``s0 - u0`` both cost something. For memory each
storage has its largest size, though not all can have it at once. Without an upper limit both are a guess.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from overlap_sched.report.words.graph import AssumedSize

Number = int | float | Fraction
"""Whole where it is finite, but for factors; ``math.inf`` where there is no limit."""

NUMBER_LIMIT = 2**31 - 1
"""Limits from here on are those of a type of numbers, and say nothing of a size."""
_DEPTH = 2
"""How many assertions are combined for one bound."""
_NARROWINGS = 8
"""How often, on average, an assertion is looked at again because an interval of its symbols has changed."""


class Interval(NamedTuple):
    """Both ends included."""

    low: Number = -math.inf
    high: Number = math.inf


Sum = Mapping[sympy.Basic, Fraction]
"""So many times each term; the constant is so many times one."""


@dataclass(frozen=True)
class SizeLimits:
    """Intervals of symbols, and the assertions that tie them to each other.

    Attributes:
        intervals: Per symbol.
        assertions: Sums of zero or less.
        having: Per symbol and per term, in which assertions it is.
    """

    intervals: dict[sympy.Symbol, Interval]
    assertions: tuple[Sum, ...]
    having: Mapping[sympy.Basic, Sequence[int]]

    @staticmethod
    def of(intervals: Mapping[sympy.Symbol, Interval], relations: Iterable[sympy.Basic]) -> "SizeLimits":
        """Return what intervals and relations (``u0 <= 4096``) say together; relations of other kinds say nothing."""
        exprs = dict.fromkeys(expr for relation in relations for expr in _sums(relation) if expr.free_symbols)
        assertions = tuple(map(_sum, exprs))
        having: dict[sympy.Basic, list[int]] = {symbol: [] for symbol in intervals}
        for at, (expr, one) in enumerate(zip(exprs, assertions, strict=True)):
            for part in dict.fromkeys([*one, *sorted(expr.free_symbols, key=by_name)]):
                having.setdefault(part, []).append(at)
        symbols = sorted([part for part in having if isinstance(part, sympy.Symbol)], key=by_name)
        made = SizeLimits({symbol: intervals.get(symbol, Interval()) for symbol in symbols}, assertions, having)
        made._narrow_all(range(len(assertions)))
        return made

    def narrow(self, symbol: sympy.Symbol, low: Number, high: Number) -> None:
        """Put a symbol between two numbers, and see what follows for the others."""
        self.intervals[symbol] = Interval(low, high)
        self._narrow_all(self.having[symbol])

    def high(self, expr: sympy.Basic) -> Number:
        """The largest value of an expression; infinite where nothing limits it."""
        return self._high(_sum(expr), _DEPTH)

    def _high(self, one: Sum, depth: int) -> Number:
        best = sum(self._largest(term, n) for term, n in one.items())
        terms = [term for term in one if term != 1]
        tried = dict.fromkeys(at for term in terms for at in self.having.get(term, ()))
        for asserted in (self.assertions[at] for at in tried if depth and len(terms) > 1):
            if len(asserted) - (1 in asserted) > 1:
                for factor in sorted({one[term] / n for term, n in asserted.items() if term in terms}):
                    if factor > 0:  # what is left when the asserted sum is subtracted so many times
                        left = {term: one.get(term, 0) - factor * asserted.get(term, 0) for term in {**one, **asserted}}
                        best = min(best, self._high({term: n for term, n in left.items() if n}, depth - 1))
        return best

    def _narrow_all(self, first: Iterable[int]) -> None:
        pending = deque(first)
        for _ in range(_NARROWINGS * (len(self.assertions) + 1)):
            if not pending:
                return
            one = self.assertions[pending.popleft()]
            for term, n in one.items():
                if isinstance(term, sympy.Symbol) and self._narrow_by(one, term, n):
                    pending.extend(at for at in self.having[term] if at not in pending)

    def _narrow_by(self, one: Sum, symbol: sympy.Symbol, n: Fraction) -> bool:
        """Narrow by an assertion, and tell whether it narrows the interval of one of its symbols."""
        rest = sum(self._largest(term, -m) for term, m in one.items() if term is not symbol)
        old = self.intervals[symbol]
        if not math.isfinite(rest):
            return False
        limit = Fraction(rest) / n
        low, high = (old.low, min(old.high, math.floor(limit))) if n > 0 else (max(old.low, math.ceil(limit)), old.high)
        new = Interval(low, high)
        if new == old or new.low > new.high or NUMBER_LIMIT <= new.high < math.inf:
            return False
        self.intervals[symbol] = new
        return True

    def _largest(self, term: sympy.Basic, n: Fraction) -> Number:
        low, high = self._interval(term)
        return n * (high if n > 0 else low)

    def _interval(self, term: sympy.Basic) -> Interval:
        if isinstance(term, sympy.Symbol):
            return self.intervals.get(term, Interval())
        known = {symbol: ValueRanges(*map(_as_sympy, self._interval(symbol))) for symbol in term.free_symbols}
        try:
            return interval_of(bound_sympy(term, known))
        except Exception:  # torch has no rule for some function
            return Interval()


def _as_sympy(end: Number) -> Any:
    return int(end) if math.isfinite(end) else int_oo * int(math.copysign(1, end))


def interval_of(known: "ValueRanges[sympy.Expr]") -> Interval:
    """Return what torch's ``ShapeEnv`` knows of a symbol; a limit that is only that of its type is none."""
    low, high = known.lower, known.upper
    return Interval(int(low) if low > -NUMBER_LIMIT else -math.inf, int(high) if high < NUMBER_LIMIT else math.inf)


def _sums(relation: sympy.Basic) -> list[sympy.Expr]:
    """Expressions that are zero or less where a relation holds; all are whole numbers."""
    match relation:
        case sympy.And():
            return [one for part in sorted(relation.args, key=str) for one in _sums(part)]
        case sympy.Le() | sympy.Ge():
            return [relation.lts - relation.gts]
        case sympy.Lt() | sympy.Gt():
            return [relation.lts - relation.gts + 1]
        case sympy.Eq():
            return [relation.lhs - relation.rhs, relation.rhs - relation.lhs]
    return []


def _sum(expr: sympy.Basic) -> Sum:
    found = sympy.expand(expr).as_coefficients_dict()
    return {term: Fraction(str(found[term])) for term in sorted(found, key=by_name)}


def by_name(symbol: sympy.Basic) -> tuple[int, str]:
    """``u2`` before ``u10``."""
    name = str(symbol)
    return len(name), name


UNBACKED_HINT = 8192
"""A size that depends on data and has no upper limit counts as this (torch's own ``unbacked_symint_fallback``)."""

SIZES_KEY = "overlap_sched_sizes"
"""In ``meta`` of a graph module that was loaded from a dump: the sizes that were guessed, which are numbers there."""

_aten = torch.ops.aten
RANGES = (_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default)


class Sizes:
    """Numbers for the symbolic sizes of one graph.

    Args:
        nodes: Of the graph, where asserts and shapes are.
        env: torch's ``ShapeEnv``.
    """

    def __init__(self, nodes: Sequence[fx.Node], env: Any) -> None:
        self._nodes, self._env = nodes, env
        self._values = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val  # before 2.13
        self._largest: dict[Any, int] = {}

    def hint(self, size: Any) -> int:
        """A likely value of a symbolic size, or of an expression; never below zero."""
        expr = self._expr(size)
        hints = {s: sympy.Integer(self._known[2].get(s, UNBACKED_HINT)) for s in expr.free_symbols}
        return _whole(expr.xreplace(hints))

    def largest(self, size: Any) -> int:
        """The largest value of a symbolic size that the graph admits, as far as is known; never below zero."""
        expr = self._expr(size)
        if not expr.free_symbols:
            return _whole(expr)
        if expr not in self._largest:
            high = self._known[0].high(expr)
            self._largest[expr] = max(0, self.hint(expr) if high == math.inf else math.floor(high))
        return self._largest[expr]

    def unknown(self, size: Any) -> bool:
        """Tell whether an expression has symbols without a value."""
        return bool(self._expr(size).free_symbols)

    def follows(self, symbol: sympy.Symbol) -> bool:
        """Tell whether a size is known once those before it are: the last of some that add up to another."""
        return symbol in self._env.replacements or symbol in self._known[3]

    @property
    def assumed(self) -> tuple[AssumedSize, ...]:
        """The sizes on which largest values rest, in the order of their names."""
        shown: dict[sympy.Symbol, str] = {}  # the first node whose value shows it
        for node, size, _ in self._sizes_shown():
            for symbol in self._expr(size).free_symbols:
                shown.setdefault(symbol, node.name)
        asked = sorted({symbol for expr in self._largest for symbol in expr.free_symbols}, key=by_name)
        return tuple(AssumedSize(str(s), shown.get(s, ""), self.largest(s), s in self._known[1]) for s in asked)

    def _sizes_shown(self) -> Iterator[tuple[fx.Node, torch.SymInt, bool]]:
        """Yield symbolic values and sizes: of which node, and whether it is the size of a dimension."""
        for node in self._nodes:
            for leaf in tree_leaves(node.meta.get("val")):
                is_tensor = isinstance(leaf, torch.Tensor)
                for size in leaf.shape if is_tensor else (leaf,):
                    if isinstance(size, torch.SymInt):
                        yield node, size, is_tensor

    def _expr(self, size: Any) -> Any:
        """An expression, or a relation, of symbols that have no value."""
        expr = size.node.expr if isinstance(size, torch.SymInt | torch.SymBool) else sympy.sympify(size)
        if not expr.free_symbols:
            return expr
        expr = self._env.replace(expr)
        return expr.xreplace({s: self._values[s] for s in expr.free_symbols if self._has_value(s)})

    def _has_value(self, symbol: sympy.Basic) -> bool:
        return isinstance(self._values.get(symbol), sympy.Integer)

    @cached_property
    def _known(self) -> tuple[SizeLimits, set[sympy.Symbol], Mapping[sympy.Symbol, int], set[sympy.Symbol]]:
        """Limits of all symbols, and more: assume what is not known, one symbol after the other.

        With both ends of every interval; symbols with an upper limit; a value for each, so that all asserts hold
        together; symbols for which the values of others had left only one.
        """
        ranges, replaced = self._env.var_to_range, self._env.replacements
        given = {s: int(n) for s, n in getattr(self._env, "var_to_hint_override", {}).items() if not self._has_value(s)}
        unknown = sorted(
            (s for s in ranges if s.is_integer and not self._has_value(s) and s not in replaced), key=by_name
        )
        limits = SizeLimits.of({s: interval_of(ranges[s]) for s in unknown}, self._relations())
        limited = {symbol for symbol, interval in limits.intervals.items() if interval.high < math.inf}
        for symbol in limits.intervals:
            low, high = limits.intervals[symbol]
            low = min(0, high) if low == -math.inf else low
            limits.narrow(symbol, low, max(low, given.get(symbol, UNBACKED_HINT)) if high == math.inf else high)
        chosen, following = replace(limits, intervals=dict(limits.intervals)), set()
        for symbol in chosen.intervals:
            low, high = chosen.intervals[symbol]
            if low == high:
                following.add(symbol)
            wanted = given.get(symbol, (low + high) // 2 if symbol in limited else UNBACKED_HINT)
            taken = max(low, min(wanted, high))
            chosen.narrow(symbol, taken, taken)
        return limits, limited, {s: int(interval.low) for s, interval in chosen.intervals.items()}, following

    def _relations(self) -> Iterator[sympy.Basic]:
        for asserts in self._env.deferred_runtime_asserts.values():
            yield from (self._expr(one.expr) for one in asserts)
        for symbol in sorted(self._env.replacements, key=by_name):
            if symbol in self._env.var_to_range:
                yield from self._between(symbol, *interval_of(self._env.var_to_range[symbol]))
        for node in self._nodes:
            yield from self._asserted(node)
        for expr in dict.fromkeys(size.node.expr for _, size, of_tensor in self._sizes_shown() if of_tensor):
            yield from self._between(expr, 0, math.inf)

    def _asserted(self, node: fx.Node) -> Iterator[sympy.Basic]:
        source = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if node.target in (_aten._assert_scalar.default, torch._check) and isinstance(value, torch.SymBool):
            yield self._expr(value)
        if node.target in RANGES and isinstance(value, torch.SymInt):
            yield from self._between(value, node.kwargs.get("min"), node.kwargs.get("max"))

    def _between(self, size: Any, low: Number | None, high: Number | None) -> Iterator[sympy.Basic]:
        expr = self._expr(size)
        if low is not None and low > -math.inf:
            yield expr >= int(low)
        if high is not None and high < NUMBER_LIMIT:
            yield expr <= int(high)


def carried_sizes(graph: fx.Graph) -> tuple[AssumedSize, ...]:
    """Sizes that were guessed when the graph was loaded from a dump; none of other graphs."""
    return tuple(getattr(graph.owning_module, "meta", {}).get(SIZES_KEY, ()))


def _whole(expr: sympy.Expr) -> int:
    """The value of an expression without symbols, not below 0; 0 where it has none: a division by zero."""
    return max(0, int(expr)) if expr.is_number and expr.is_finite else 0
