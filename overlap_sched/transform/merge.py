"""Several products become one, as a value; nodes are named, so that a problem and a graph agree.

Aggregation, the inverse of fission (MAGIS, ASPLOS 2024; TASO's rules merge the same). ``<m>`` is :attr:`Merge.name`, i
the index in ``members``, member i is ``mm(a_i, b_i)``::

    rows, of one b                               columns, of one a
      <m>_in     cat([a_*], 0)           copy      <m>_in     cat([b_*], 1)           copy
      <m>        mm(in, b)                         <m>        mm(a, in)
      <m>_out_i  slice(m, 0, from, to)   view      <m>_part_i slice(m, 1, from, to)   view
                                                   <m>_out_i  clone(part_i)           copy

    batched, all of one size                     the same, of one a (of one b: right instead of left)
      <m>_left   stack([a_*])            copy      <m>_one    unsqueeze(a, 0)         view
      <m>_right  stack([b_*])            copy      <m>_left   expand(one, ...)        view
      <m>        bmm(left, right)                  <m>_right  stack([b_*])            copy
      <m>_out_i  select(m, 0, i)         view      ...

``<m>_out_i`` stands for member i. Rows of a result are contiguous, columns are not: so these are copied. What is put
together is put together in every run of the graph, since weights change from step to step.

Not bitwise: a library may add up a larger product in another order. Each element is still one sum over the same
products, so results differ as those of two kernels do (in tests, in float64: 1e-12 of the largest element).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from overlap_sched.errors import RewriteError

Form = Literal["rows", "columns", "batched"]
"""Along what products are put together: rows or columns of one product, or products of a batch."""
Side = Literal["left", "right", ""]
SHARED: Mapping[Form, tuple[Side, ...]] = {"rows": ("right",), "columns": ("left",), "batched": ("left", "right", "")}
"""Per form, which operand may be one value that goes in once (of a batch: that is expanded)."""


@dataclass(frozen=True)
class Merge:
    """Products become one.

    Legal where no member needs another, where they have one type of element, and where what ``form`` wants to be the
    same is: the second operand (``rows``), the first (``columns``), the sizes (``batched``).

    Attributes:
        members: Products (``aten.mm``) by name, two or more, in their original order.
        left, right: Per member, the nodes that give its operands.
        rows, columns: Per member, of its result. inner: what is summed over, of all.
        item_bytes: Of an element.
        form: See :data:`Form`.
        shared: See :data:`SHARED`. The first member's operand goes in for all.
    """

    members: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: int
    item_bytes: int
    form: Form
    shared: Side

    @property
    def name(self) -> str:
        """Of the product; all other new nodes start with it."""
        return f"merge_{self.members[0]}_{len(self.members)}"

    @property
    def left_bytes(self) -> tuple[int, ...]:
        """Per member, of its first operand."""
        return tuple(rows * self.inner * self.item_bytes for rows in self.rows)

    @property
    def right_bytes(self) -> tuple[int, ...]:
        """Per member, of its second operand."""
        return tuple(self.inner * columns * self.item_bytes for columns in self.columns)

    @property
    def result_bytes(self) -> tuple[int, ...]:
        """Per member, of its result."""
        return tuple(rows * columns * self.item_bytes for rows, columns in zip(self.rows, self.columns, strict=True))

    @property
    def saved_bytes(self) -> int:
        """By how much less the one product moves than all members: it reads what they share once.

        Of ``batched`` an expanded operand is counted as often as it is read.
        """
        again = {"rows": self.right_bytes, "columns": self.left_bytes, "batched": ()}[self.form]
        return sum(again[1:])


def check_merge(merge: Merge) -> None:
    """What can be said of a merge without a graph.

    Raises:
        RewriteError: It has fewer than two members, lists of other lengths, or sizes that its form does not take.
    """
    members, named = merge.members, f"a merge of {', '.join(merge.members)}"
    if len(set(members)) < max(len(members), 2):
        raise RewriteError(f"{named}: two products at least, each once.")
    listed = (merge.left, merge.right, merge.rows, merge.columns)
    if any(len(one) != len(members) for one in listed) or merge.shared not in SHARED.get(merge.form, ()):
        raise RewriteError(
            f"{named}, as {merge.form!r} of one {merge.shared!r} operand: it wants another form, or operands and sizes "
            "of each member."
        )
    for what, sizes in (("rows", merge.rows), ("columns", merge.columns)):
        if what != merge.form and len(set(sizes)) > 1:
            raise RewriteError(f"{named}: as {merge.form}, all have as many {what}, not {', '.join(map(str, sizes))}.")
    if len(set(zip(merge.left, merge.right, strict=True))) < len(members):
        raise RewriteError(f"{named}: two of them are the same product.")
