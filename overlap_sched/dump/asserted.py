"""What a dump asserts of sizes that only the data knows: ``item <= rows``, as in graphs whose sizes are symbols.

A dump has one number for each size. Where asserts leave a choice, it is loaded with the smallest sizes, with the
largest, and with those in the middle, and the one counts that holds most bytes: ``rows - item`` is largest where
``item`` is smallest.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import sympy
import torch
from torch import fx

from overlap_sched.fx.sizes import Interval, SizeLimits

Within = Literal["middle", "least", "most"]
"""Which of the sizes that asserts admit."""

_aten = torch.ops.aten
_RELATIONS: Mapping[Any, Callable[..., Any]] = {
    operator.le: sympy.Le,
    operator.lt: sympy.Lt,
    operator.ge: sympy.Ge,
    operator.gt: sympy.Gt,
    operator.eq: sympy.Eq,
}
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.neg)
_RANGES = (_aten.sym_constrain_range.default, _aten.sym_constrain_range_for_size.default)


class Asserted:
    """Sizes within what a graph asserts of them.

    Args:
        nodes: The graph.
        number: The value of a placeholder, or of the size of one; where only the data knows it, its name.
        given: Sizes that are known, by node.
        within: Which sizes to take.
    """

    def __init__(
        self,
        nodes: Sequence[fx.Node],
        number: Callable[[fx.Node], int | str],
        given: Mapping[str, int],
        within: Within = "middle",
    ) -> None:
        self._number, self._within = number, within
        relations = [one for node in nodes for one in self._understood(node)]
        self._limits = SizeLimits.of({}, relations)
        self._limited = {s.name for s, interval in self._limits.intervals.items() if interval.high < math.inf}
        self.chosen = 0
        for name, size in given.items():
            self._fix(name, size)

    def size(self, name: str, default: int, *, balanced: bool) -> int:
        """The size to take of a node; ``balanced``: rather the default than one of the limits."""
        symbol = _symbol(name)
        low, high = self._limits.intervals.get(symbol, Interval())
        wanted: Any = default
        if name in self._limited and not balanced:
            self.chosen += 1
            low = max(low, 0)
            wanted = {"middle": (low + high) // 2, "least": low, "most": high}[self._within]
        taken = int(max(low, min(wanted, high)))
        self._fix(name, taken)
        return taken

    def _fix(self, name: str, size: int) -> None:
        if _symbol(name) in self._limits.intervals:
            self._limits.narrow(_symbol(name), size, size)

    def _understood(self, node: fx.Node) -> list[sympy.Basic]:
        """Parse what one node asserts; nothing where it is not understood."""
        try:
            return self._relations(node)
        except (AttributeError, IndexError, TypeError, ValueError):  # a damaged file: told where the node is evaluated
            return []

    def _relations(self, node: fx.Node) -> list[sympy.Basic]:
        if node.target is _aten._assert_scalar.default and isinstance(node.args[0], fx.Node):
            asserted = node.args[0]
            relation = _RELATIONS.get(asserted.target)
            sides = [self._expr(arg) for arg in asserted.args]
            return [] if relation is None or None in sides else [relation(*sides)]
        if node.target in _RANGES:
            expr, low, high = self._expr(node.args[0]), node.kwargs.get("min"), node.kwargs.get("max")
            if expr is not None:
                return [sympy.Ge(expr, 0 if low is None else low), *([] if high is None else [sympy.Le(expr, high)])]
        return []

    def _expr(self, argument: Any) -> sympy.Expr | None:
        if isinstance(argument, int):
            return sympy.Integer(argument)
        if not isinstance(argument, fx.Node):
            return None
        if argument.target in _ARITHMETIC:
            parts = [self._expr(part) for part in argument.args]
            return None if None in parts else argument.target(*parts)
        sized = argument.target is _aten.sym_size.int
        of: Any = argument.args[0] if sized else argument
        if of.op == "placeholder":
            known = self._number(argument)
            return _symbol(known) if isinstance(known, str) else sympy.Integer(known)
        return _symbol(of.name) if not sized or argument.args[1] == 0 else None


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)
