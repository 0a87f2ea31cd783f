"""What cannot be rewritten, and what the refusal names; the graph is then as it was."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites import alike_of, facts, maker, prepare, rewrite_graph
from overlap_sched.fx.rewrites.facts import keeps_bits
from overlap_sched.transform.rewrites import Bucket, Keep, Regather, Rewrite, Stream
from tests.support.fx_graphs import C10D, WAIT_TENSORS, gather, scatter, trace, wait
from tests.support.rewrite_graphs import GRAPHS, described, reduce, refusal

GATHER, GATHER_1 = "all_gather_into_tensor", "all_gather_into_tensor_1"
SCATTER, SCATTER_1 = "reduce_scatter_tensor", "reduce_scatter_tensor_1"
BUCKET, SCATTERS = Bucket((GATHER, GATHER_1)), Bucket((SCATTER, SCATTER_1))
PLAIN = [(4, 8), (4, 8)]
F32, I64 = torch.float32, torch.int64


def why(f: Callable[..., Any], shapes: list[tuple[int, ...]], *rewrites: Rewrite) -> str:
    """Why rewrites of a function's graph are refused; ``""``: they are not."""
    return why_not(trace(f, *shapes), *rewrites)


def why_not(gm: fx.GraphModule, *rewrites: Rewrite) -> str:
    before = described(gm.graph)
    said = refusal(gm, list(rewrites))
    assert described(gm.graph) == before
    return said or ""


def two(a: Tensor, b: Tensor) -> list[Tensor]:
    ga, gb = gather(a), gather(b)
    return [wait(ga) + 1, wait(gb) + 1]


@pytest.mark.parametrize(
    ("rewrites", "text"),
    [
        ([Regather(GATHER, ("add",), ("add_1",))], f"'add_1' is no view of what '{GATHER}' gives"),
        ([BUCKET, Stream(GATHER)], f"no node '{GATHER}'"),
        ([Stream(GATHER), BUCKET], f"'{GATHER_1}' has process group '0' and '{GATHER}' has '0/2'"),
    ],
    ids=str,
)
def test_rewrites_that_are_not_legal(rewrites: list[Rewrite], text: str) -> None:
    """Those that a problem refuses, too, are in ``tests/transform/test_apply.py``."""
    assert text in why(two, PLAIN, *rewrites)
    assert why(two, PLAIN, BUCKET) == ""


def test_a_name_that_is_taken() -> None:
    gm = trace(two, *PLAIN)
    next(node for node in gm.graph.nodes if node.name == "add").name = "bucket_all_gather_into_tensor_2_in"
    assert "'bucket_all_gather_into_tensor_2_in', as another one is already" in why_not(gm, BUCKET)


def of_several_kinds(a: Tensor, b: Tensor) -> list[Tensor]:
    halves = gather(a.to(torch.bfloat16))
    ga, other = gather(b), gather(a, "1")
    sums, averages = scatter(b), C10D.reduce_scatter_tensor(a, "avg", 2, "0")
    four = C10D.all_gather_into_tensor(b, 4, "0")
    return [wait(x) + 1 for x in (halves, ga, other, sums, averages, four)]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (GATHER, GATHER_1, "type and reduction 'float32'"),
        (GATHER_1, f"{GATHER}_2", "process group '1'"),
        (GATHER_1, SCATTER, "operator 'reduce_scatter_tensor'"),
        (SCATTER, SCATTER_1, "type and reduction 'float32 avg'"),
        (GATHER_1, f"{GATHER}_3", "number of ranks 4"),
    ],
)
def test_members_of_several_kinds(first: str, second: str, text: str) -> None:
    assert f"{second!r} has {text} and {first!r} has" in why(of_several_kinds, PLAIN, Bucket((first, second)))


def test_a_path_that_only_the_other_bucket_makes() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        one, two = wait(gather(a)), wait(gather(b))
        three, four = wait(scatter(one.sin())), wait(scatter(two.cos()))
        return [wait(gather(three * 2)), wait(gather(four * 3))]

    across = [Bucket((GATHER, f"{GATHER}_3")), Bucket((GATHER_1, f"{GATHER}_2"))]
    gm = trace(f, *PLAIN)
    assert [why_not(gm, one) for one in across] == ["", ""]
    text = "'bucket_all_gather_into_tensor_2' and 'bucket_all_gather_into_tensor_1_2' would need itself"
    assert text in why_not(gm, *across)


def test_hazards_count_as_paths() -> None:
    said = why_not(GRAPHS["hazards"](), Bucket((GATHER_1, f"{GATHER}_3")))
    assert "'bucket_all_gather_into_tensor_1_2' would need itself, through 'copy_'" in said


def unwaited(a: Tensor, b: Tensor) -> list[Tensor]:
    return [gather(a), wait(gather(b)) + 1]


def looked_at_early(a: Tensor, b: Tensor) -> list[Tensor]:
    launched = gather(a)
    return [launched.view(-1), wait(launched), wait(gather(b))]


def waited_for_together(a: Tensor, b: Tensor) -> list[Tensor]:
    return WAIT_TENSORS([gather(a), gather(b)])


@pytest.mark.parametrize(
    ("f", "user"), [(unwaited, "output"), (looked_at_early, "view"), (waited_for_together, "wait_tensors")]
)
def test_launches_that_others_need(f: Callable[..., Any], user: str) -> None:
    assert f"{user!r} needs the launch of 'all_gather_into_tensor' itself" in why(f, PLAIN, BUCKET)


def written(a: Tensor, b: Tensor) -> list[Tensor]:
    return [wait(scatter(a)).mul_(2.0), wait(scatter(b))]


def strided(a: Tensor, b: Tensor) -> list[Tensor]:
    return [wait(scatter(a)) + 1, torch.as_strided(wait(scatter(b)), (2, 4), (8, 1), 0) + 1]


def viewed(a: Tensor, b: Tensor) -> list[Tensor]:
    return [wait(scatter(a)) + 1, wait(scatter(b)).view(torch.int16) + 1]


def test_results_that_must_be_tensors_of_their_own() -> None:
    assert "something writes to the result of 'reduce_scatter_tensor'" in why(written, PLAIN, SCATTERS)
    for f in (strided, viewed):
        assert "'reduce_scatter_tensor_1' is looked at by its address" in why(f, PLAIN, SCATTERS)
        assert why(f, PLAIN, Bucket(SCATTERS.members, "coalesced")) == ""
        assert alike_of(trace(f, *PLAIN)) == {SCATTER: "float32 sum"}


def test_parts_start_where_kernels_expect_them() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(scatter(a)), wait(scatter(b))]

    odd = [(4, 3), (4, 8)]
    assert "'reduce_scatter_tensor' has 24 bytes, no multiple of 16" in why(f, odd, SCATTERS)
    assert why(f, odd, Bucket(SCATTERS.members, "coalesced")) == ""
    assert why(two, odd, BUCKET) == ""  # gathers are copied out
    assert alike_of(trace(f, *odd)) == {SCATTER_1: "float32 sum"}


def test_values_that_are_not_known() -> None:
    def turned(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(gather(a.t())), wait(gather(b))]

    assert "the input of 'all_gather_into_tensor' is not contiguous" in why(turned, PLAIN, BUCKET)
    assert "the input of 'all_gather_into_tensor' is empty" in why(two, [(0, 8), (4, 8)], BUCKET)
    gm = trace(two, *PLAIN)
    wait_node = next(node for node in gm.graph.nodes if node.name == "wait_tensor_1")
    value = wait_node.meta.pop("val")
    assert "the result of 'all_gather_into_tensor_1' is no fake tensor" in why_not(gm, BUCKET)
    wait_node.meta["val"] = value.new_empty((4, 16))
    coalesced = Bucket(BUCKET.members, "coalesced")
    assert "'wait_tensor_1' would be ((8, 8), (8, 1), torch.float32" in why_not(gm, coalesced)
    symbolic = make_fx(two, tracing_mode="symbolic")(torch.empty(4, 8), torch.empty(6, 8))
    assert "the input of 'all_gather_into_tensor' has a symbolic shape" in why_not(symbolic, BUCKET)


def test_groups_that_also_send() -> None:
    gm = trace(two, *PLAIN)
    with mock.patch("overlap_sched.fx.rewrites.facts.GraphFacts.sends", return_value=True):
        for rewrite in (BUCKET, Stream(GATHER)):
            assert "process group '0'" in why_not(gm, rewrite)


@pytest.mark.parametrize(
    ("op", "reduction", "dtype", "ranks", "keeps"),
    [
        ("all_reduce", "sum", F32, 3, False),
        ("all_reduce", "sum", torch.complex64, 3, False),
        ("all_reduce", "sum", F32, None, False),
        ("all_reduce", "max", I64, 64, True),
        ("all_reduce", "sum", I64, None, True),
        ("all_reduce", "premul_sum", F32, 2, False),
        ("reduce_scatter_tensor", "sum", torch.bfloat16, 64, True),
        ("reduce_scatter_tensor", "max", F32, 64, True),
        ("reduce_scatter_tensor", "premul_sum", F32, 64, False),
    ],
)
def test_reductions_that_keep_their_bits(
    op: str, reduction: str, dtype: torch.dtype, ranks: int | None, keeps: bool
) -> None:
    """That it is so on real ranks is in ``test_ranks.py``."""
    assert keeps_bits(op, reduction, dtype, ranks) is keeps


def test_reductions_that_would_change_bits() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(reduce(a, op="sum")), wait(reduce(b, op="sum"))]

    said = why(f, PLAIN, Bucket(("all_reduce", "all_reduce_1")))
    assert "'all_reduce' is a sum of float32 on ranks of an unknown number" in said
    assert alike_of(trace(f, *PLAIN)) == {}


def test_keeping_and_gathering_again() -> None:
    def both(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(gather(a)), wait(gather(a))]

    def written_between(a: Tensor, b: Tensor) -> list[Tensor]:
        first = wait(gather(a.to(torch.bfloat16)))
        a.add_(1.0)
        return [first + 1, wait(gather(a.to(torch.bfloat16))) + 1]

    keep = Keep(GATHER, GATHER_1)
    assert "one tensor must not stand for both" in why(both, PLAIN, keep)
    assert f"'{GATHER}' is gathered before '{GATHER_1}'" in why(both, PLAIN, Keep(GATHER_1, GATHER))
    assert "are not two gathers of one tensor" in why(written_between, PLAIN, keep)
    hazards, whole = GRAPHS["hazards"](), GRAPHS["whole"]()
    assert why_not(hazards, Keep(GATHER, f"{GATHER}_3"))
    assert "something writes to the input of 'all_gather_into_tensor'" in why_not(hazards, Regather(GATHER, ("mul",)))
    assert "only gathers are kept or gathered again" in why_not(whole, Regather(SCATTER, ("output",)))


def test_a_second_communicator_must_be_there() -> None:
    known = {"0": [0, 1]}
    with mock.patch.object(maker, "live_ranks", known.get):
        said = why(two, PLAIN, Stream(GATHER))
        assert "'0/2'" in said
        assert "overlap_sched.distributed.second_communicators()" in said
        known["0/2"] = [0, 1]
        assert why(two, PLAIN, Stream(GATHER)) == ""


def test_coalesced_gathers_over_gloo() -> None:
    with mock.patch.object(facts, "over_gloo", return_value=True):
        assert "Use form='copied'" in why(two, PLAIN, Bucket(BUCKET.members, "coalesced"))
        assert why(two, PLAIN, BUCKET) == ""


def test_orders_that_are_none() -> None:
    gm = trace(two, *PLAIN)
    before = described(gm.graph)
    pending = prepare(gm, [BUCKET])
    names = [node.name for node in pending.order]
    pending.undo()
    for wrong, text in (
        (names[:-1], r"the order has 16 of the 17 nodes of the rewritten graph: it lacks \['output'\]"),
        ([*names, "more"], r"the order has 17 of the 17 nodes of the rewritten graph: .* \['more'\]"),
        ([*names[:-1], names[0]], r"the order has 17 of the 17 nodes of the rewritten graph: it lacks \['output'\]"),
        (names[::-1], "the order has 'output' before 'add', which it needs"),
    ):
        with pytest.raises(RewriteError, match=text):
            prepare(gm, [BUCKET], wrong)
        assert described(gm.graph) == before
    prepare(gm, [BUCKET], ["all_gather.launch", *names]).commit()
    assert [node.name for node in gm.graph.nodes] == names


def test_a_graph_without_a_module() -> None:
    graph = trace(two, *PLAIN).graph
    rewrite_graph(graph, [BUCKET])
    assert any(node.name == "bucket_all_gather_into_tensor_2" for node in graph.nodes)
