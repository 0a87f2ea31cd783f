"""Products of a graph that are worth being one: which, and in which form.

Three kinds are looked at: those of one first operand (query, key and value; gate and up), those of one second operand
(their weights' gradients), and small ones of one size. What is put together is copied, and so are columns of a result:
a merge is worth it where kernels are so small that launching one costs more than that. Only such are listed.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.errors import RewriteError
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.draft import Draft
from overlap_sched.fx.rewrites.merge import MM, merge
from overlap_sched.fx.rewrites.sites import layout
from overlap_sched.transform.merge import Form, Merge, Side
from overlap_sched.transform.merged import saved_us
from overlap_sched.transform.prices import Prices

MOST = 64
"""Products in one merge."""
Products = Sequence[fx.Node]


def merges(lifted: Lifted, prices: Prices) -> tuple[Merge, ...]:
    """Merges that save time and can all be done together, those that save most first.

    Args:
        lifted: Of a graph; it is only read.
        prices: Of the products and of copies.
    """
    graph, nodes = lifted.nodes[0].graph, {node.name: node for node in lifted.problem.nodes}
    saved = {one: saved_us(one, [nodes[name] for name in one.members], prices) for one in merge_candidates(graph)}
    best = sorted((one for one, us in saved.items() if us > 0.0), key=lambda one: -saved[one])
    taken: set[str] = set()
    some: list[Merge] = []
    for one in best:
        if taken.isdisjoint(one.members):
            taken.update(one.members)
            some.append(one)
    if _can(graph, some):
        return tuple(some)
    found: list[Merge] = []
    for one in some:
        if _can(graph, [*found, one]):
            found.append(one)
    return tuple(found)


def _can(graph: fx.Graph, rewrites: Sequence[Merge]) -> bool:
    draft = Draft(graph)
    try:
        for one in rewrites:
            merge(draft, one)
        draft.sorted()
    except RewriteError:
        return False
    finally:
        draft.undo()
    return True


def merge_candidates(graph: fx.Graph) -> list[Merge]:
    """All groups of products that do not need each other and could be one; legal or not, worth it or not."""
    products = [node for node in graph.find_nodes(op="call_function", target=MM) if _known(node)]
    bits = _Bits(graph, products)
    left, right = (_alike(products, partial(_operand, k)) for k in (0, 1))
    sizes = _alike(products, lambda node: (*_sizes(node), node.meta["val"].dtype, node.meta["val"].device))
    kinds: Iterable[tuple[Form, Iterable[Products]]] = (
        ("columns", left),
        ("rows", right),
        ("batched", chain(left, right, sizes)),
    )
    found: dict[Merge, None] = {}
    for form, groups in kinds:
        for group in groups:
            for some in _apart(group, bits):
                if form != "batched" or len(set(map(_sizes, some))) == 1:
                    found[_merge(some, form)] = None
    return list(found)


def _known(node: fx.Node) -> bool:
    values = [one.meta.get("val") for one in (node, *node.args) if isinstance(one, fx.Node)]
    return len(values) == 3 and all(
        type(value) is FakeTensor and all(type(size) is int for size in value.shape) for value in values
    )


def _value(node: fx.Node) -> Hashable:
    """What tells values apart: two views of one place of a storage are one."""
    value = node.meta["val"]
    return value.untyped_storage()._cdata, value.storage_offset(), layout(value)


def _operand(k: int, node: fx.Node) -> Hashable:
    return _value(node.args[k])


def _sizes(node: fx.Node) -> tuple[int, int, int]:
    rows, inner = node.args[0].meta["val"].shape
    return rows, inner, node.args[1].meta["val"].shape[1]


def _alike(products: Products, key: Callable[[fx.Node], Hashable]) -> list[Products]:
    groups: dict[Hashable, list[fx.Node]] = defaultdict(list)
    for node in products:
        groups[key(node)].append(node)
    return [group for group in groups.values() if len(group) > 1]


def _apart(group: Products, bits: "_Bits") -> Iterator[Products]:
    """Of a group, some of which no one needs another; then some of the rest."""
    rest = list(group)
    while len(rest) > 1:
        some: list[fx.Node] = []
        mask = 0
        for node in rest:
            if len(some) < MOST and not bits.needs[node] & mask:
                some.append(node)
                mask |= bits.own[node]
        if len(some) > 1:
            yield some
        rest = [node for node in rest if not bits.own[node] & mask]


class _Bits:
    """Products as bits: ``own`` of each, and which ones it ``needs``."""

    def __init__(self, graph: fx.Graph, products: Products) -> None:
        self.own = {node: 1 << k for k, node in enumerate(products)}
        self.needs: dict[fx.Node, int] = {}
        for node in graph.nodes:
            self.needs[node] = 0
            for u in node.all_input_nodes:
                self.needs[node] |= self.needs[u] | self.own.get(u, 0)


def _merge(some: Products, form: Form) -> Merge:
    sizes = [_sizes(node) for node in some]
    left, right = (tuple(node.args[k].name for node in some) for k in (0, 1))
    rows, inner, columns = zip(*sizes, strict=True)
    item_bytes = some[0].meta["val"].dtype.itemsize
    one = [len({_operand(k, node) for node in some}) == 1 for k in (0, 1)]
    shared: Side = "left" if one[0] and form != "rows" else "right" if one[1] else ""
    return Merge(tuple(node.name for node in some), left, right, rows, columns, inner[0], item_bytes, form, shared)
