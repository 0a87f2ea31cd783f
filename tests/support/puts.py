"""Steps that put rows into zeros, between gathers and reductions: what may be written in place, as problems."""

from collections.abc import Sequence

from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem, Storage
from tests.support.sharded import COPY_US_PER_BYTE, PRICES, RANKS

PUT, FULL = "aten.index_put.default", "aten.full.default"


def put_step(tables: Sequence[int], rows: int = 8, readers: int = 0, compute_us: float = 20.0) -> Problem:
    """Per table: a gather, a product with what is gathered, zeros, rows put into them, what is made of that reduced.

    Args:
        tables: Bytes of each table.
        rows: Bytes of what is put into one, by indices of a byte.
        readers: So many look at the zeros as well, listed behind the put; what they make is returned.
        compute_us: Of a product.
    """
    storages, nodes, kept = [Storage(16, pinned=True), Storage(1)], [], list[tuple[int, int]]()

    def add(name: str, kind: Kind, deps: Sequence[int], nbytes: int, use: Sequence[int], **fields: object) -> int:
        alloc = (len(storages),) if nbytes else ()
        storages.extend([Storage(nbytes)] if nbytes else [])
        nodes.append(Node(name, kind, tuple(deps), alloc, tuple(use), **fields))  # type: ignore[arg-type]
        return len(nodes) - 1

    def made(v: int) -> int:
        return nodes[v].alloc[0]

    def copy(name: str, op: str, deps: Sequence[int], nbytes: int, use: Sequence[int], moved: int) -> int:
        return add(name, Kind.COMPUTE, deps, nbytes, use, time_us=moved * COPY_US_PER_BYTE, op=op, bytes=moved)

    def collective(name: str, op: str, before: int, nbytes: int, larger: int) -> int:
        us = PRICES.collective_us(op, larger, Group(RANKS, True))
        taken = made(before)
        launch = add(name, Kind.COLLECTIVE, [before], nbytes, [taken], time_us=us, op=op, group="fsdp", bytes=larger)
        return add(f"{name}_wait", Kind.WAIT, [launch], 0, [taken, made(launch)], collective=launch)

    nodes += [Node("w", Kind.INPUT, (), (0,)), Node("at", Kind.INPUT, (), (1,))]
    for k, table in enumerate(tables):
        wait = collective(f"gather{k}", "all_gather_into_tensor", 0, 16 * RANKS, 16 * RANKS)
        full = nodes[wait].use[1]
        given = add(f"mm{k}", Kind.COMPUTE, [wait], rows, [full], time_us=compute_us, op="aten.mm.default")
        zeros = copy(f"zeros{k}", FULL, [], table, [], table)
        moved = 2 * table + rows + 1
        put = copy(f"put{k}", PUT, [zeros, 1, given], table, [made(zeros), 1, made(given)], moved)
        for r in range(readers):
            kept.append((v := copy(f"look{k}_{r}", "aten.sum.default", [zeros], 4, [made(zeros)], table), made(v)))
        scatter = collective(f"scatter{k}", "reduce_scatter_tensor", put, max(table // RANKS, 1), table)
        kept.append((scatter, nodes[scatter].use[1]))
    nodes.append(Node("output", Kind.OUTPUT, tuple(v for v, _ in kept), (), tuple(s for _, s in kept)))
    return Problem("puts", tuple(nodes), tuple(storages), {"fsdp": Group(RANKS, True)})


@st.composite
def put_steps(draw: st.DrawFn) -> Problem:
    """A few tables, small and large."""
    tables = draw(st.lists(st.integers(4, 400), min_size=1, max_size=4))
    return put_step(tables, draw(st.integers(1, 40)), draw(st.integers(0, 2)), draw(st.floats(1.0, 60.0)))
