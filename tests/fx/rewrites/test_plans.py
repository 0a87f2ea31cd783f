"""What is planned for graphs: scenes of torch's own tests, and the order in which buckets are packed.

The scenes are on eight fake ranks, with times of the user's own. What torch's pass does with each is not asked; what
must come out is: the step, what goes together, and why the rest does not. After torch's
``test/distributed/test_overlap_bucketing_unit.py``. Buckets are packed in the order of parameters, whatever is launched
first.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from overlap_sched import Kind, Options
from overlap_sched.cost import Roofline
from overlap_sched.errors import OverlapSchedWarning, RewriteError, VerificationError
from overlap_sched.fx import Report, schedule_graph
from overlap_sched.fx import apply as fx_apply
from overlap_sched.fx.lifting import lift
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.fx.rewrites.maker import KEPT_WHOLE
from overlap_sched.transform.buckets import BucketSearch, packed, places_of
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket
from overlap_sched.transform.search import RewriteSearch
from tests.support import fx_graphs
from tests.support.fx_graphs import C10D, trace, wait

RANKS, MM_US = 8, 30.0
SQUARE = (64, 64)
ALL = Options(headroom="1GiB", rewrites=("bucket",))


@pytest.fixture(scope="module", autouse=True)
def fake_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def gather(x: Tensor, group: str = "0") -> Tensor:
    return C10D.all_gather_into_tensor(x, RANKS, group)


def scatter(x: Tensor, group: str = "0") -> Tensor:
    return C10D.reduce_scatter_tensor(x, "sum", RANKS, group)


def reduce(x: Tensor) -> Tensor:
    return C10D.all_reduce(x, "sum", "0")


def scheduled(f: Callable[..., Any] | fx.GraphModule, collective_us: float, options: Options = ALL) -> Report:
    def times(node: fx.Node) -> float | None:
        target = str(node.target)  # casts and the like are the model's
        return MM_US if "aten.mm" in target else collective_us if "c10d" in target and "wait" not in target else None

    gm = f if isinstance(f, fx.GraphModule) else trace(f, SQUARE, SQUARE, SQUARE)
    report = schedule_graph(gm, options, cost=times)
    gm.graph.lint()
    return report


def members(report: Report) -> list[int]:
    return [len(one.members) for one in report.rewrites if isinstance(one, Bucket)]


def independent(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Two gathers, each waited for at once; products that need neither."""
    ga = wait(gather(a))
    y = c @ c
    gb = wait(gather(b))
    return [ga + 1, gb + 1, y @ c]


def scatter_between(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """A scatter between two gathers, of what the first gives."""
    wa = wait(gather(a))
    s = scatter(wa @ c)
    y = c @ c
    ws = wait(s)
    wb = wait(gather(b))
    return [ws + 1, wb + 1, y]


def two_groups(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    wa = wait(gather(a, "0"))
    y = c @ c
    wb = wait(gather(b, "1"))
    return [wa + 1, wb + 1, y @ c]


def reductions(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    wa = wait(reduce(a))
    y = c @ c
    wb = wait(reduce(b))
    return [wa + 1, wb + 1, y @ c]


def steps(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Gathers and scatters of one group."""
    wa = wait(gather(a))
    wr = wait(scatter(c @ c))
    wb = wait(gather(b))
    return [wa + 1, wb + 1, wr + 1, wait(scatter(c @ wr.new_ones(64, 64)))]


def two_types(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Gathers of shards of two types."""
    wa = wait(gather(a))
    wb = wait(gather(b.to(torch.bfloat16)))
    return [wa + 1, wb + 1, c @ c]


@pytest.mark.parametrize(
    ("f", "collective_us", "step_us", "buckets"),
    [
        (independent, 20.0, 64.0, []),  # all hidden: nothing to gain by a bucket
        (independent, 100.0, 104.0, [2]),
        (scatter_between, 20.0, 82.0, []),
        (scatter_between, 100.0, 234.0, [2]),
        (two_groups, 100.0, 104.0, []),  # in flight together as they are
        (reductions, 20.0, 64.0, []),
    ],
)
def test_steps_with_times_of_ones_own(
    f: Callable[..., Any], collective_us: float, step_us: float, buckets: list[int]
) -> None:
    report = scheduled(f, collective_us)
    assert report.schedule is not None
    assert report.schedule.scheduled.step_us == pytest.approx(step_us, abs=3.0)  # bytes add to a bucket's latency
    assert members(report) == buckets
    assert bool(report.refused) == (f is reductions)


@pytest.mark.parametrize(
    ("f", "options", "reason"),
    [
        (reductions, ALL, "'all_reduce' is a sum of float32 on 8 ranks"),
        (two_types, ALL, "all_gather_into_tensor of group '0' comes as float32, bfloat16"),
        (steps, replace(ALL, rewrites=("stream",)), "there is no second communicator '0/2'"),
    ],
)
def test_what_cannot_be_had_is_left_out_and_recorded(f: Callable[..., Any], options: Options, reason: str) -> None:
    report = scheduled(f, 100.0, options)
    assert report.changed
    assert report.rewrites == ()
    (said,) = report.refused
    assert said.startswith(reason)
    assert said.endswith("(The same of 1 more.)") is (f is not two_types)
    assert f"  not rewritten: {said}" in str(report).splitlines()


def test_of_sums_of_integers_a_bucket_is_made() -> None:
    def counts(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        x, y = (wait(reduce(x.to(torch.int32))) for x in (a, b))
        return [x + 1, y + 1, c @ c]

    report = scheduled(counts, 100.0)
    assert members(report) == [2]
    assert report.refused == ()


def test_a_graph_that_refuses_what_was_planned_still_gets_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise RewriteError("no, thanks")

    monkeypatch.setattr(fx_apply, "prepare", refuses)
    with pytest.warns(OverlapSchedWarning, match=r"^overlap_sched rewrites nothing in 'independent': no, thanks$"):
        report = scheduled(independent, 100.0)
    assert (report.changed, report.rewrites, report.refused) == (True, (), ("no, thanks",))
    with pytest.raises(VerificationError, match=r"^scheduling 'independent' failed: RewriteError: no, thanks$"):
        scheduled(independent, 100.0, replace(ALL, strict=True))


def test_without_values_waits_know_their_launches() -> None:
    gm = trace(scatter_between, SQUARE, SQUARE, SQUARE)
    for node in gm.graph.nodes:
        node.meta.pop("val", None)
    report = scheduled(gm, 20.0)
    assert report.schedule is not None
    assert dict(report.notes) == {"no_val": 13}
    assert len(report.schedule.problem.waits) == 3
    assert report.schedule.scheduled.step_us == pytest.approx(80.0)


def backward(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Parameters are used last to first: so are they gathered, so come their gradients; listed as the parameters."""
    gc, gb = fx_graphs.gather(c), fx_graphs.gather(torch.nn.functional.pad(b, [0, 0, 0, 1]))
    ga = fx_graphs.gather(a.to(torch.float64).to(torch.float32))
    wc, wb, wa = wait(gc), wait(gb), wait(ga)
    sc, sb, sa = fx_graphs.scatter(wc * 2.0), fx_graphs.scatter(wb * 2.0), fx_graphs.scatter(wa * 2.0)
    return [wait(sa).to(torch.float64), wait(sb)[:2], wait(sc)]


def of(fn: object = backward) -> tuple[fx.GraphModule, BucketSearch]:
    gm = trace(fn, (2, 4), (2, 4), (2, 4))  # type: ignore[arg-type]
    problem = lift(gm).problem
    return gm, BucketSearch(RewriteSearch(problem, Prices(Roofline()), None, 2**40))


def bucket_of(graph: BucketSearch, op: str) -> list[str]:
    nodes = graph.problem.nodes
    ids = [v for v in graph.problem.collectives if op in nodes[v].op]
    (bucket,) = graph.rewrites([ids], "copied")
    assert isinstance(bucket, Bucket)
    return list(bucket.members)


def test_as_parameters_are_listed_and_not_as_they_are_launched() -> None:
    _, graph = of()
    for op, name in (("gather", "all_gather_into_tensor"), ("scatter", "reduce_scatter_tensor")):
        assert bucket_of(graph, op) == [f"{name}_2", f"{name}_1", name]


def test_what_has_no_parameter_of_its_own_comes_last_as_it_is_launched() -> None:
    def activations(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        first, second, third = fx_graphs.gather(b + c), fx_graphs.gather(a * b), fx_graphs.gather(c)
        wide = wait(second)
        used_twice = wait(fx_graphs.scatter(wide * 2.0))
        return [used_twice + 1.0, used_twice * 2.0, wait(fx_graphs.scatter(wide)), wait(first), wide + wait(third)]

    _, graph = of(activations)
    places = places_of(graph.problem)
    nodes = graph.problem.nodes
    assert {nodes[v].name: place for v, place in places.items()} == {
        "all_gather_into_tensor_2": 2,
        "reduce_scatter_tensor_1": 2,
    }
    gathers = [v for v in graph.problem.collectives if "gather" in nodes[v].op]
    assert [nodes[v].name for v in packed(gathers, places)] == [
        "all_gather_into_tensor_2",
        "all_gather_into_tensor",
        "all_gather_into_tensor_1",
    ]


def test_the_graph_packs_in_that_order_too() -> None:
    gm, graph = of()
    ids = [v for v in graph.problem.collectives if "scatter" in graph.problem.nodes[v].op]
    rewrites = graph.rewrites([ids], "copied")
    rewrite_graph(gm, rewrites)
    (packing,) = [node for node in gm.graph.nodes if node.name.endswith("_in")]
    sources = [view.args[0].args[0].name for view in packing.args[0]]
    assert sources == ["wait_tensor_2", "wait_tensor_1", "wait_tensor"]
    assert packing.meta[KEPT_WHOLE]
    assert graph.problem.groups["0"].size == fx_graphs.RANKS
    assert graph.problem.nodes[-1].kind is Kind.OUTPUT
