"""One rank of a real gloo job: each rewrite of small graphs, its results compared with the unrewritten graph's by bits.

``python -m tests.support.rewrite_ranks FOLDER``, started as torchrun would. Saves in ``FOLDER/rank<r>.pt``: per case,
whether all results are bitwise equal in every round, or why the rewrite was refused; on two ranks fissions, too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.distributed import second_communicators
from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import fission_of, region_from
from overlap_sched.fx.dimensions.candidates import expert_fissions
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.fx.rewrites.maker import layout
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.transform.dimension_graph import range_cut
from overlap_sched.transform.rewrites import Bucket, Keep, Recompute, Regather, Rewrite, Stream
from tests.support.fx_graphs import RANKS, wait
from tests.support.ranks import save_found
from tests.support.rewrite_graphs import EXAMPLES
from tests.support.rewrite_graphs import traced as traced_example
from tests.support.routed_graphs import check_alike, inputs_of_ranks, step, trace

C10D = torch.ops._c10d_functional


def fission() -> dict[str, Any]:
    """A tensor-parallel layer whole and in parts: are results alike by bits, and how many nodes run in parts?"""
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = [torch.randn(shape, generator=generator) for shape in EXAMPLES["layer"].shapes]
    whole, gm = traced_example("layer"), traced_example("layer")
    seed = next(iter(gm.graph.nodes))
    one = fission_of(region_from(gm.graph, {seed: range_cut(tuple(seed.meta["val"].shape), 0, 2)}, 2))
    assert one is not None
    rewrite_graph(gm, [one])
    alike = [torch.equal(a, b) for _ in range(3) for a, b in zip(whole(*inputs), gm(*inputs), strict=True)]
    return {"alike": alike, "nodes": len(one.nodes)}


class Sent(torch.fx.Interpreter):
    """Runs a graph and notes what is sent."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.splits: list[list[int]] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is C10D.all_to_all_single.default:
            self.splits.append(list(args[2]))
        return super().call_function(target, args, kwargs)


def routed() -> list[list[list[int]]]:
    """A layer with experts, whole and in parts: how many rows go to every rank, in each exchange of each graph."""
    first = Sent(trace(step))
    inputs = inputs_of_ranks(first.module, 3)[dist.get_rank()]
    want, sent = first.run(*inputs), [first.splits]
    for one in expert_fissions(lift(trace(step)), (2, 4)):
        gm = trace(step)
        rewrite_graph(gm, [one])
        again = Sent(gm)
        check_alike(want, again.run(*inputs))
        sent.append(again.splits)
    return sent


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64)
REDUCTIONS = ("sum", "avg", "max", "min", "product")
ROUNDS = 2
ROWS, WIDTHS = (3, 1, 5), (40, 8, 1000)
"""Per member; rows of a scatter's input are per rank."""


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def data(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Other values on each rank; floats with NaN and zeros of both signs."""
    generator = torch.Generator().manual_seed(seed * 100 + dist.get_rank())
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, generator=generator).to(dtype)
    x, odd = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    for value, below in ((float("nan"), 0.05), (0.0, 0.15), (-0.0, 0.1)):
        x = torch.where(odd < below, torch.tensor(value), x)
    return x.to(dtype)


def traced(f: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
    return make_fx(f, tracing_mode="fake")(*fakes)


def gathered(x: Tensor) -> Tensor:
    return wait(C10D.all_gather_into_tensor(x, dist.get_world_size(), "0"))


def gathers(*shards: Tensor) -> list[Tensor]:
    return [wait(g) * 1 for g in [C10D.all_gather_into_tensor(x, dist.get_world_size(), "0") for x in shards]]


def twice(x: Tensor, *_: Tensor) -> list[Tensor]:
    first, second = gathered(x), gathered(x)
    return [first * 2, first + 1, second * 3]


def cast_twice(x: Tensor, *_: Tensor) -> list[Tensor]:
    """A shard that is cast for each gather, and used through a view."""

    def wide() -> Tensor:
        return torch.ops.prims.convert_element_type(x, torch.float64)

    first = gathered(wide())
    turned = first.t()
    return [first * 2, turned + 1, gathered(wide()) * 3, turned * 5]


def scatters(reduction: str) -> Callable[..., list[Tensor]]:
    ranks = dist.get_world_size()
    return lambda *xs: [wait(s) for s in [C10D.reduce_scatter_tensor(x, reduction, ranks, "0") for x in xs]]


def reduces(reduction: str) -> Callable[..., list[Tensor]]:
    return lambda *xs: [wait(s) for s in [C10D.all_reduce(x, reduction, "0") for x in xs]]


def kinds(dtype: torch.dtype) -> list[str]:
    """Reductions that gloo has."""
    return [reduction for reduction in REDUCTIONS if reduction != "avg" or dtype.is_floating_point]


def cases() -> Iterator[tuple[str, Callable[..., list[Tensor]], int, torch.dtype, list[Rewrite]]]:
    """Name, what is computed, rows of an input per row of a member, type, rewrites."""
    ranks = dist.get_world_size()
    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        ops = [("all_gather_into_tensor", gathers, 1)]
        for kind in kinds(dtype):
            ops += [(f"reduce_scatter_tensor {kind}", scatters(kind), ranks), (f"all_reduce {kind}", reduces(kind), 1)]
        for named, f, rows in ops:
            op, label = named.split()[0], f"{named} {short}"
            members = (op, f"{op}_1", f"{op}_2")
            yield f"copied {label}", f, rows, dtype, [Bucket(members)]
            yield f"coalesced {label}", f, rows, dtype, [Bucket(members, "coalesced")]
        yield f"stream {short}", gathers, 1, dtype, [Stream("all_gather_into_tensor_1")]
        two = Bucket(("all_gather_into_tensor", "all_gather_into_tensor_2"))
        yield f"bucket on a stream {short}", gathers, 1, dtype, [two, Stream(two.name)]
        yield f"keep {short}", twice, 1, dtype, [Keep("all_gather_into_tensor", "all_gather_into_tensor_1")]
        yield f"keep cast {short}", cast_twice, 1, dtype, [Keep("all_gather_into_tensor", "all_gather_into_tensor_1")]
        view = Regather("all_gather_into_tensor", ("mul_2",), ("t",))
        again = Recompute(("convert_element_type",), (view.name,))
        yield f"regather view {short}", cast_twice, 1, dtype, [view, again]
        yield f"regather {short}", twice, 1, dtype, [Regather("all_gather_into_tensor", ("add",))]


def run(name: str, f: Callable[..., list[Tensor]], rows: int, dtype: torch.dtype, rewrites: list[Rewrite]) -> Any:
    """Whether all results have the same bits; or the reason of a refusal."""
    shapes = [(r * rows, w) for r, w in zip(ROWS, WIDTHS, strict=True)]
    inputs = [data(shape, dtype, k) for k, shape in enumerate(shapes)]
    plain, changed = traced(f, inputs), traced(f, inputs)
    try:
        rewrite_graph(changed, rewrites)
    except RewriteError as error:
        return str(error)
    alike = True
    for turn in range(ROUNDS):
        inputs = [data(shape, dtype, 10 * turn + k) for k, shape in enumerate(shapes)]
        want, got = plain(*inputs), changed(*inputs)
        alike &= all(layout(a) == layout(b) and torch.equal(bits(a), bits(b)) for a, b in zip(want, got, strict=True))
    return alike


def packed_by_hand() -> dict[str, bool]:
    """Per reduction and type, whether a packed all_reduce has the bits of single ones: what legality rests on."""
    found = {}
    for dtype in DTYPES:
        for reduction in kinds(dtype):
            alike = True
            for turn in range(ROUNDS):
                inputs = [data((r, w), dtype, 10 * turn + k) for k, (r, w) in enumerate(zip(ROWS, WIDTHS, strict=True))]
                want = [wait(C10D.all_reduce(x, reduction, "0")) for x in inputs]
                packed = wait(C10D.all_reduce(torch.cat([x.flatten() for x in inputs]), reduction, "0"))
                parts = packed.split([x.numel() for x in inputs])
                alike &= all(torch.equal(bits(a.flatten()), bits(b)) for a, b in zip(want, parts, strict=True))
            found[f"{reduction} {str(dtype).removeprefix('torch.')}"] = alike
    return found


def found() -> dict[str, Any]:
    second_communicators()
    with safe_gathers():
        both = {"cases": {name: run(name, *rest) for name, *rest in cases()}, "by hand": packed_by_hand()}
        return both | ({"fission": fission(), "routed": routed()} if dist.get_world_size() == RANKS else {})


if __name__ == "__main__":
    save_found(found)
