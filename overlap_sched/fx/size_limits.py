"""How large sizes can be that only the data knows: intervals, from what a graph asserts of them.

An assertion is kept as a sum that is zero or less: ``u0 <= s0``, with 4,096 for ``s0``, as ``u0 - 4096``. Its terms are
symbols, or whole expressions where it is not linear (``u0*u1``). From it follows an interval of each of its symbols;
and a bound of any sum that it is a part of: of ``u0 + u1`` where that very sum is asserted.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import sympy
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

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


class Sum(NamedTuple):
    """``constant`` and so many times each term."""

    terms: Mapping[sympy.Basic, Number]
    constant: Number


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
    having: Mapping[sympy.Basic, tuple[int, ...]]

    @staticmethod
    def of(intervals: Mapping[sympy.Symbol, Interval], relations: Iterable[sympy.Basic]) -> "SizeLimits":
        """Return what intervals and relations (``u0 <= 4096``) say together; relations of other kinds say nothing."""
        sums = dict.fromkeys(one for relation in relations for one in _sums(relation) if one.free_symbols)
        assertions = tuple([_sum(one) for one in sums])
        having: dict[sympy.Basic, list[int]] = {symbol: [] for symbol in intervals}
        for at, (expr, one) in enumerate(zip(sums, assertions, strict=True)):
            for part in dict.fromkeys([*one.terms, *sorted(expr.free_symbols, key=by_name)]):
                having.setdefault(part, []).append(at)
        symbols = sorted([part for part in having if isinstance(part, sympy.Symbol)], key=by_name)
        kept = {symbol: intervals.get(symbol, Interval()) for symbol in symbols}
        made = SizeLimits(kept, assertions, {part: tuple(at) for part, at in having.items()})
        made._narrow_all(range(len(assertions)))
        return made

    def copy(self) -> "SizeLimits":
        """One whose intervals can be narrowed without these."""
        return SizeLimits(dict(self.intervals), self.assertions, self.having)

    def narrow(self, symbol: sympy.Symbol, low: Number, high: Number) -> None:
        """Put a symbol between two numbers, and see what follows for the others."""
        self.intervals[symbol] = Interval(low, high)
        self._narrow_all(self.having[symbol])

    def high(self, expr: sympy.Basic) -> Number:
        """The largest value of an expression; infinite where nothing limits it."""
        return self._high(_sum(expr), _DEPTH)

    def _high(self, one: Sum, depth: int) -> Number:
        best = one.constant + sum([_largest(n, self._interval(term)) for term, n in one.terms.items()])
        if depth and len(one.terms) > 1:
            tried = dict.fromkeys(at for term in one.terms for at in self.having.get(term, ()))
            for at in tried:
                asserted = self.assertions[at]
                factors = {one.terms.get(term, 0) / Fraction(n) for term, n in asserted.terms.items()}
                for factor in sorted(factors):
                    if factor > 0 and len(asserted.terms) > 1:
                        best = min(best, self._high(_less(one, asserted, factor), depth - 1))
        return best

    def _narrow_all(self, first: Iterable[int]) -> None:
        pending = deque(first)
        for _ in range(_NARROWINGS * (len(self.assertions) + 1)):
            if not pending:
                return
            one = self.assertions[pending.popleft()]
            for term, n in one.terms.items():
                if isinstance(term, sympy.Symbol) and self._narrow_by(one, term, n):
                    pending.extend(at for at in self.having[term] if at not in pending)

    def _narrow_by(self, one: Sum, symbol: sympy.Symbol, n: Number) -> bool:
        """Narrow by an assertion, and tell whether it narrows the interval of one of its symbols."""
        rest = one.constant - sum(
            [_largest(-m, self._interval(term)) for term, m in one.terms.items() if term is not symbol]
        )
        old = self.intervals[symbol]
        if not math.isfinite(rest):
            return False
        limit = Fraction(-rest) / Fraction(n)
        if n > 0:
            new = Interval(old.low, min(old.high, math.floor(limit)))
        else:
            new = Interval(max(old.low, math.ceil(limit)), old.high)
        if new == old or new.low > new.high or NUMBER_LIMIT <= new.high < math.inf:
            return False
        self.intervals[symbol] = new
        return True

    def _interval(self, term: sympy.Basic) -> Interval:
        if isinstance(term, sympy.Symbol):
            return self.intervals.get(term, Interval())
        ranges = {symbol: _as_range(self.intervals.get(symbol, Interval())) for symbol in term.free_symbols}
        try:
            return interval_of(bound_sympy(term, ranges))
        except Exception:  # torch has no rule for some function
            return Interval()


def interval_of(known: "ValueRanges[sympy.Expr]") -> Interval:
    """Return what torch's ``ShapeEnv`` knows of a symbol; a limit that is only that of its type is none."""
    low, high = _number(known.lower), _number(known.upper)
    return Interval(low if low > -NUMBER_LIMIT else -math.inf, high if high < NUMBER_LIMIT else math.inf)


def _number(value: sympy.Basic) -> Number:
    if value in (int_oo, sympy.oo):
        return math.inf
    if value in (-int_oo, -sympy.oo):
        return -math.inf
    return int(value)


def _as_range(interval: Interval) -> "ValueRanges[sympy.Expr]":
    low, high = (int(end) if math.isfinite(end) else int_oo if end > 0 else -int_oo for end in interval)
    return ValueRanges(low, high)


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
    terms = {term: Fraction(str(n)) for term, n in found.items() if term != 1}
    return Sum({term: terms[term] for term in sorted(terms, key=by_name)}, Fraction(str(found.get(sympy.S.One, 0))))


def _less(one: Sum, asserted: Sum, factor: Number) -> Sum:
    """Return what is left of a sum when an asserted one is subtracted from it some times."""
    terms = dict(one.terms)
    for term, n in asserted.terms.items():
        terms[term] = terms.get(term, 0) - factor * n
    return Sum({term: n for term, n in terms.items() if n}, one.constant - factor * asserted.constant)


def _largest(n: Number, interval: Interval) -> Number:
    return n * (interval.high if n > 0 else interval.low)


def by_name(symbol: sympy.Basic) -> tuple[int, str]:
    """``u2`` before ``u10``."""
    name = str(symbol)
    return len(name), name
