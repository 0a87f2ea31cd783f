"""Plain numbers for sizes that have none: hints for times, and for memory the largest that the graph's asserts admit.

A dynamic size has the hint with which it was traced. A size that only the data knows (unbacked: ``u0`` of ``.item()``
or ``nonzero``) has limits at most, see :mod:`overlap_sched.fx.size_limits`. They come from

- ranges in torch's ``ShapeEnv``, and what it has concluded of equal sizes;
- run-time asserts: deferred ones in the ``ShapeEnv``, and nodes of the graph;
- shapes: no dimension of a tensor is below zero.

For times a size has the middle of its interval, so that ``u0`` and ``s0 - u0`` both cost something. For memory each
storage has its largest size, though not all can have it at once. Without an upper limit both are a guess.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from overlap_sched.fx.size_limits import NUMBER_LIMIT, Interval, SizeLimits, by_name, interval_of
from overlap_sched.report.words.sizes import AssumedSize

UNBACKED_HINT = 8192
"""A size that depends on data and has no upper limit counts as this (torch's own ``unbacked_symint_fallback``)."""

SIZES_KEY = "overlap_sched_sizes"
"""In ``meta`` of a graph module that was loaded from a dump: the sizes that were guessed, which are numbers there."""

_aten = torch.ops.aten
_ASSERTS = (_aten._assert_scalar.default, torch._check)
_RANGES = (_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default)


_SYMBOLIC = (torch.SymInt, torch.SymBool)


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
        self._asked: dict[sympy.Symbol, None] = {}

    def hint(self, size: Any) -> int:
        """A likely value of a symbolic size, or of an expression; never below zero."""
        expr = self._expr(size)
        return max(0, _whole(expr.xreplace({s: sympy.Integer(self._hint_of(s)) for s in expr.free_symbols})))

    def largest(self, size: Any) -> int:
        """The largest value of a symbolic size that the graph admits, as far as is known; never below zero."""
        expr = self._expr(size)
        if not expr.free_symbols:
            return max(0, _whole(expr))
        found = self._largest.get(expr)
        if found is None:
            self._asked.update(dict.fromkeys(expr.free_symbols))
            high = self._known.limits.high(expr)
            found = self._largest[expr] = max(0, self.hint(expr) if high == math.inf else math.floor(high))
        return found

    def unknown(self, size: Any) -> bool:
        """Tell whether an expression has symbols without a value."""
        return bool(self._expr(size).free_symbols)

    def follows(self, symbol: sympy.Symbol) -> bool:
        """Tell whether a size is known once those before it are: the last of some that add up to another."""
        return symbol in self._env.replacements or symbol in self._known.following

    @property
    def assumed(self) -> tuple[AssumedSize, ...]:
        """The sizes on which largest values rest, in the order of their names."""
        shown = self._shown()
        return tuple(
            AssumedSize(str(s), shown.get(s, ""), self.largest(s), s in self._known.limited)
            for s in sorted(self._asked, key=by_name)
        )

    def _expr(self, size: Any) -> Any:
        """An expression, or a relation, of symbols that have no value."""
        expr = size.node.expr if isinstance(size, _SYMBOLIC) else sympy.sympify(size)
        if not expr.free_symbols:
            return expr
        expr = self._env.replace(expr)
        return expr.xreplace({s: self._values[s] for s in expr.free_symbols if self._has_value(s)})

    def _has_value(self, symbol: sympy.Basic) -> bool:
        return isinstance(self._values.get(symbol), sympy.Integer)

    def _hint_of(self, symbol: sympy.Symbol) -> int:
        return self._known.hints.get(symbol, UNBACKED_HINT)

    @cached_property
    def _known(self) -> "_KnownSymbols":
        given = {s: int(n) for s, n in getattr(self._env, "var_to_hint_override", {}).items() if not self._has_value(s)}
        return _known(SizeLimits.of(self._ranges(), self._relations()), given)

    def _ranges(self) -> dict[sympy.Symbol, Interval]:
        ranges = self._env.var_to_range
        unknown = [s for s in ranges if s.is_integer and not self._has_value(s) and s not in self._env.replacements]
        return {s: interval_of(ranges[s]) for s in sorted(unknown, key=by_name)}

    def _relations(self) -> Iterator[sympy.Basic]:
        for asserts in self._env.deferred_runtime_asserts.values():
            yield from (self._expr(one.expr) for one in asserts)
        for symbol in sorted(self._env.replacements, key=by_name):
            if symbol in self._env.var_to_range:
                yield from self._between(symbol, interval_of(self._env.var_to_range[symbol]))
        seen: set[sympy.Basic] = set()
        for node in self._nodes:
            yield from self._asserted(node)
            for leaf in tree_leaves(node.meta.get("val")):
                sizes = leaf.shape if isinstance(leaf, torch.Tensor) else ()
                new = [n.node.expr for n in sizes if isinstance(n, torch.SymInt) and n.node.expr not in seen]
                seen.update(new)
                yield from (one for expr in new for one in self._between(expr, Interval(0)))

    def _asserted(self, node: fx.Node) -> Iterator[sympy.Basic]:
        source = node.args[0] if node.args else None
        value = source.meta.get("val") if isinstance(source, fx.Node) else None
        if node.target in _ASSERTS and isinstance(value, torch.SymBool):
            yield self._expr(value)
        if node.target in _RANGES and isinstance(value, torch.SymInt):
            low, high = node.kwargs.get("min"), node.kwargs.get("max")
            yield from self._between(
                value, Interval(-math.inf if low is None else low, math.inf if high is None else high)
            )

    def _between(self, size: Any, limits: Interval) -> Iterator[sympy.Basic]:
        expr = self._expr(size)
        if limits.low > -math.inf:
            yield expr >= int(limits.low)
        if limits.high < NUMBER_LIMIT:
            yield expr <= int(limits.high)

    def _shown(self) -> dict[sympy.Symbol, str]:
        """By symbol, the first node whose value shows it."""
        shown: dict[sympy.Symbol, str] = {}
        for node in self._nodes:
            for leaf in tree_leaves(node.meta.get("val")):
                for size in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
                    if isinstance(size, torch.SymInt):
                        for symbol in sorted(self._expr(size).free_symbols, key=by_name):
                            shown.setdefault(symbol, node.name)
        return shown


class _KnownSymbols(NamedTuple):
    """What is known of all symbols.

    Attributes:
        limits: With both ends of every interval: assumed where nothing limits it.
        limited: Symbols with an upper limit.
        hints: A value for each, so that all asserts hold together.
        following: Symbols for which the values of others had left only one.
    """

    limits: SizeLimits
    limited: set[sympy.Symbol]
    hints: Mapping[sympy.Symbol, int]
    following: set[sympy.Symbol]


def _known(limits: SizeLimits, given: Mapping[sympy.Symbol, int]) -> _KnownSymbols:
    """Assume what is not known, one symbol after the other, as each says something of the others.

    Args:
        limits: From the graph.
        given: Hints of the user (torch's ``hint_override``).
    """
    limited = {symbol for symbol, interval in limits.intervals.items() if interval.high < math.inf}
    for symbol in limits.intervals:
        low, high = limits.intervals[symbol]
        low = min(0, high) if low == -math.inf else low
        limits.narrow(symbol, low, max(low, given.get(symbol, UNBACKED_HINT)) if high == math.inf else high)
    chosen, following = limits.copy(), set()
    for symbol in chosen.intervals:
        low, high = chosen.intervals[symbol]
        if low == high:
            following.add(symbol)
        wanted = given.get(symbol, (low + high) // 2 if symbol in limited else UNBACKED_HINT)
        taken = max(low, min(wanted, high))
        chosen.narrow(symbol, taken, taken)
    return _KnownSymbols(limits, limited, {s: int(interval.low) for s, interval in chosen.intervals.items()}, following)


def carried_sizes(graph: fx.Graph) -> tuple[AssumedSize, ...]:
    """Sizes that were guessed when the graph was loaded from a dump; none of other graphs."""
    return tuple(getattr(graph.owning_module, "meta", {}).get(SIZES_KEY, ()))


def _whole(expr: sympy.Expr) -> int:
    """The value of an expression without symbols; 0 where it has none: a division by zero."""
    return int(expr) if expr.is_number and expr.is_finite else 0
