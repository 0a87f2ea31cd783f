"""Several products become one: what a merge makes of a problem.

The nodes and their names are listed in :mod:`overlap_sched.transform.merge`; this is what they hold::

    in, left, right   allocate what is put together, next to what it is put together from
    m                 allocates all results, packed
    out_i             views of that, so all results live as long as any of them; or copies, each in its own storage

The one product takes as long as the cost model says of all operations, and of the bytes that it moves, beside what it
says of the members: times from elsewhere keep what they know, as of parts (:mod:`overlap_sched.transform.in_parts`).
"""

from collections.abc import Iterable, Sequence

from overlap_sched.cost.model import Compute
from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId
from overlap_sched.problem.node import StorageId
from overlap_sched.transform.bucket import CAT, CLONE, SLICE
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.merge import Merge, check_merge
from overlap_sched.transform.prices import Prices

MM, BMM, STACK = "aten.mm.default", "aten.bmm.default", "aten.stack.default"
SELECT, UNSQUEEZE, EXPAND = "aten.select.int", "aten.unsqueeze.default", "aten.expand.default"
Given = tuple[NodeId, tuple[StorageId, ...]]
"""A node, and the storages that it gives (none where they are not counted)."""


def merged(draft: Draft, merge: Merge, prices: Prices) -> None:
    """Do it.

    Raises:
        RewriteError: A member is no such product. (Whether one needs another shows at the end:
            :meth:`~overlap_sched.transform.draft.Draft.finished`.)
    """
    _Merging(draft, merge, prices).run()


def saved_us(merge: Merge, nodes: Sequence[Node], prices: Prices) -> float:
    """What it takes off the compute stream; below 0: it adds to it.

    Args:
        merge: It.
        nodes: Its members.
        prices: Of copies and of the product.
    """
    return sum(node.time_us for node in nodes) - _product_us(merge, nodes, prices) - sum(_copies_us(merge, prices))


def _product_us(merge: Merge, nodes: Sequence[Node], prices: Prices) -> float:
    us, price = sum(node.time_us for node in nodes), prices.model.compute_us
    apart = sum(price(Compute(node.op, node.flops, node.bytes)) for node in nodes)
    if not apart:
        return us
    op, moved = BMM if merge.form == "batched" else MM, sum(node.bytes for node in nodes) - merge.saved_bytes
    return us * price(Compute(op, sum(node.flops for node in nodes), moved)) / apart


def _copies_us(merge: Merge, prices: Prices) -> Iterable[float]:
    for side, sizes in (("left", merge.left_bytes), ("right", merge.right_bytes)):
        if side != merge.shared:
            yield prices.copy_us(STACK if merge.form == "batched" else CAT, 2 * sum(sizes))
    if merge.form == "columns":
        yield from (prices.copy_us(CLONE, 2 * nbytes) for nbytes in merge.result_bytes)


class _Merging:
    """What is carried along while one merge is done."""

    def __init__(self, draft: Draft, merge: Merge, prices: Prices) -> None:
        check_merge(merge)
        self.draft, self.merge, self.prices = draft, merge, prices
        self.members = [draft.find(name) for name in merge.members]
        self.left, self.right = ([draft.find(name) for name in names] for names in (merge.left, merge.right))
        self.at = max(draft.at[v] for v in self.members)
        for v, a, b in zip(self.members, self.left, self.right, strict=True):
            node = draft.node(v)
            if node.op != MM or len(node.alloc) > 1 or not {a, b} <= set(node.deps):
                names = f"{draft.node(a).name!r} and {draft.node(b).name!r}"
                raise RewriteError(f"{node.name!r} is no product of {names}: it is {node.op or node.kind.value!r}.")
        operands = {*self.left, *self.right}
        self.before = _unique(u for v in self.members for u in draft.node(v).deps if u not in operands)

    def run(self) -> None:
        """Operands, the product, results; then users are told, and the members go."""
        left, right = self._operands()
        nodes = [self.draft.node(v) for v in self.members]
        packed = (self.draft.storage(sum(self.merge.result_bytes)),) if nodes[0].alloc else ()
        product = Node(
            self.merge.name,
            Kind.COMPUTE,
            _unique((left[0], right[0], *self.before)),
            packed,
            _unique((*left[1], *right[1])),
            _product_us(self.merge, nodes, self.prices),
            BMM if self.merge.form == "batched" else MM,
            flops=sum(node.flops for node in nodes),
            bytes=sum(node.bytes for node in nodes) - self.merge.saved_bytes,
        )
        made = self.draft.add(product, self.at)
        for i, v in enumerate(self.members):
            self._tell_users(v, made, self._out(i, (made, packed)), packed)

    def _operands(self) -> tuple[Given, Given]:
        merge = self.merge
        given = [self._given(self.left), self._given(self.right)]
        if merge.form == "batched":
            return self._side("left", given[0], merge.left_bytes), self._side("right", given[1], merge.right_bytes)
        if merge.form == "rows":
            return self._copied(f"{merge.name}_in", CAT, given[0], merge.left_bytes), given[1][0]
        return given[0][0], self._copied(f"{merge.name}_in", CAT, given[1], merge.right_bytes)

    def _given(self, operands: Sequence[NodeId]) -> list[Given]:
        """Per member, an operand and its storage: that of those the member uses which the operand makes or looks at."""
        found = []
        for v, u in zip(self.members, operands, strict=True):
            node = self.draft.node(u)
            used = self.draft.node(v).use
            found.append((u, tuple(s for s in node.alloc or node.use if s in used)))
        return found

    def _side(self, side: str, given: Sequence[Given], sizes: Sequence[int]) -> Given:
        """A batch of operands: put together, or one that is looked at several times."""
        name = f"{self.merge.name}_{side}"
        if side != self.merge.shared:
            return self._copied(name, STACK, given, sizes)
        source, use = given[0]
        one = self._view(f"{self.merge.name}_one", UNSQUEEZE, source, use)
        return self._view(name, EXPAND, one, use), use

    def _copied(self, name: str, op: str, given: Sequence[Given], sizes: Sequence[int]) -> Given:
        deps, use = _unique((*(u for u, _ in given), *self.before)), _unique(s for _, held in given for s in held)
        nbytes = sum(sizes)
        alloc = (self.draft.storage(nbytes),) if use else ()
        us = self.prices.copy_us(op, 2 * nbytes)
        return self.draft.add(Node(name, Kind.COMPUTE, deps, alloc, use, us, op, bytes=2 * nbytes), self.at), alloc

    def _view(self, name: str, op: str, source: NodeId, use: tuple[StorageId, ...]) -> NodeId:
        return self.draft.add(Node(name, Kind.COMPUTE, (source,), (), use, op=op), self.at)

    def _out(self, i: int, product: Given) -> NodeId:
        merge, (made, packed) = self.merge, product
        if merge.form != "columns":
            return self._view(f"{merge.name}_out_{i}", SELECT if merge.form == "batched" else SLICE, made, packed)
        part = self._view(f"{merge.name}_part_{i}", SLICE, made, packed)
        moved, alloc = 2 * merge.result_bytes[i], self.draft.node(self.members[i]).alloc
        us = self.prices.copy_us(CLONE, moved)
        copy = Node(f"{merge.name}_out_{i}", Kind.COMPUTE, (part,), alloc, packed, us, CLONE, bytes=moved)
        return self.draft.add(copy, self.at)

    def _tell_users(self, v: NodeId, product: NodeId, out: NodeId, packed: tuple[StorageId, ...]) -> None:
        """Who takes a member's result takes what stands for it; who only has to come later waits for the product."""
        alloc = self.draft.node(v).alloc
        takes = [w for w in self.draft.after(v) if not alloc or alloc[0] in self.draft.node(w).use]
        self.draft.redirect(v, out, takes)
        self.draft.redirect(v, product)
        self.draft.remove(v)
        if alloc and self.merge.form != "columns":
            self.draft.rehouse(alloc[0], packed[0])


def _unique(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))
