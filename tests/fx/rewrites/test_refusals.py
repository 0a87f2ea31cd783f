"""What cannot be rewritten, word by word; the graph is then as it was."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites import again, alike_of, backends, prepare, rewrite_graph
from overlap_sched.transform.rewrites import Bucket, Keep, Regather, Rewrite, Split, Stream
from tests.support.fx_graphs import ATEN, C10D, WAIT_TENSORS, gather, scatter, trace, wait
from tests.support.rewrite_graphs import GRAPHS, described, reduce, refusal

GATHER, GATHER_1 = "all_gather_into_tensor", "all_gather_into_tensor_1"
SCATTER, SCATTER_1 = "reduce_scatter_tensor", "reduce_scatter_tensor_1"


def why(f: Callable[..., Any], shapes: list[tuple[int, ...]], *rewrites: Rewrite) -> str | None:
    """Why rewrites of a function's graph are refused, which must then be as it was."""
    return why_not(trace(f, *shapes), *rewrites)


def why_not(gm: fx.GraphModule, *rewrites: Rewrite) -> str | None:
    before = described(gm.graph)
    said = refusal(gm, list(rewrites))
    assert described(gm.graph) == before
    return said


def two(a: Tensor, b: Tensor) -> list[Tensor]:
    ga, gb = gather(a), gather(b)
    return [wait(ga) + 1, wait(gb) + 1]


BUCKET = Bucket((GATHER, GATHER_1))
PLAIN = [(4, 8), (4, 8)]


def test_two_legal_gathers() -> None:
    assert why(two, PLAIN, BUCKET) is None


@pytest.mark.parametrize(
    ("rewrite", "text"),
    [
        (Bucket((GATHER,)), "a bucket of all_gather_into_tensor: two collectives at least, each once."),
        (
            Bucket((GATHER, GATHER)),
            "a bucket of all_gather_into_tensor, all_gather_into_tensor: two collectives at least, each once.",
        ),
        (
            Bucket((GATHER, "missing")),
            "there is no node 'missing' to rewrite: it is not in the graph, or gone by now.",
        ),
        (
            Bucket((GATHER, "add")),
            "'add' is 'aten.add.Tensor': what can be rewritten is all_gather_into_tensor, all_reduce, "
            "reduce_scatter_tensor.",
        ),
        (
            Split("a_1"),
            "'a_1' is 'placeholder': what can be rewritten is all_gather_into_tensor, all_reduce, "
            "reduce_scatter_tensor.",
        ),
        (
            Split(GATHER, 33),
            "'all_gather_into_tensor' has 32 elements per rank and is to be split into 33 parts: there must be 2 parts "
            "or more, none of them empty.",
        ),
        (
            Split(GATHER, 1),
            "'all_gather_into_tensor' has 32 elements per rank and is to be split into 1 parts: there must be 2 parts "
            "or more, none of them empty.",
        ),
        (
            Keep(GATHER, GATHER_1),
            "'all_gather_into_tensor' and 'all_gather_into_tensor_1' are not two gathers of one tensor in one group.",
        ),
        (
            Keep(GATHER, GATHER),
            "'all_gather_into_tensor' and 'all_gather_into_tensor' are not two gathers of one tensor in one group.",
        ),
        (
            Regather(GATHER, ("add_1",)),
            "'add_1' does not use a wait of 'all_gather_into_tensor', or is the graph's output.",
        ),
        (
            Regather(GATHER, ("add",)),
            "gathering 'all_gather_into_tensor' again needs users for both: some, and not all.",
        ),
        (Stream("add"), "'add' does not name its process group: it must stay there."),
    ],
    ids=str,
)
def test_texts(rewrite: Rewrite, text: str) -> None:
    assert why(two, PLAIN, rewrite) == text


def test_one_after_the_other() -> None:
    gone = f"there is no node {GATHER!r} to rewrite: it is not in the graph, or gone by now."
    assert why(two, PLAIN, BUCKET, Split(GATHER)) == gone
    assert why(two, PLAIN, Split(GATHER), BUCKET) == gone
    assert why(two, PLAIN, Split(GATHER), Bucket(("split_all_gather_into_tensor_2_0", GATHER_1))) is None
    twice = "'all_gather_into_tensor' is on a second communicator already, '0/2'."
    assert why(two, PLAIN, Stream(GATHER), Stream(GATHER)) == twice
    groups = (
        "'all_gather_into_tensor_1' has process group '0' and 'all_gather_into_tensor' has '0/2': a bucket has one."
    )
    assert why(two, PLAIN, Stream(GATHER), BUCKET) == groups


def test_a_name_that_is_taken() -> None:
    gm = trace(two, *PLAIN)
    next(node for node in gm.graph.nodes if node.name == "add").name = "bucket_all_gather_into_tensor_2_in"
    text = "a new node would be named 'bucket_all_gather_into_tensor_2_in', as another one is already."
    assert why_not(gm, BUCKET) == text


def test_members_of_several_kinds() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        halves = gather(a.to(torch.bfloat16))
        ga, other = gather(b), gather(a, "1")
        sums, averages = scatter(b), C10D.reduce_scatter_tensor(a, "avg", 2, "0")
        four = C10D.all_gather_into_tensor(b, 4, "0")
        return [wait(x) + 1 for x in (halves, ga, other, sums, averages, four)]

    def said(first: str, second: str) -> str | None:
        return why(f, PLAIN, Bucket((first, second)))

    bfloat, plain, elsewhere, four = GATHER, GATHER_1, f"{GATHER}_2", f"{GATHER}_3"
    assert said(bfloat, plain) == (
        f"{plain!r} has type and reduction 'float32' and {bfloat!r} has 'bfloat16': a bucket has one."
    )
    assert said(plain, elsewhere) == (f"{elsewhere!r} has process group '1' and {plain!r} has '0': a bucket has one.")
    assert said(plain, SCATTER) == (
        f"{SCATTER!r} has operator 'reduce_scatter_tensor' and {plain!r} has 'all_gather_into_tensor': a bucket has "
        "one."
    )
    assert said(SCATTER, SCATTER_1) == (
        f"{SCATTER_1!r} has type and reduction 'float32 avg' and {SCATTER!r} has 'float32 sum': a bucket has one."
    )
    assert said(plain, four) == f"{four!r} has number of ranks 4 and {plain!r} has 2: a bucket has one."


def test_a_path_from_one_member_to_another() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        first = wait(gather(a))
        return [wait(gather(first.sin() + b.sum()))]

    text = (
        "'bucket_all_gather_into_tensor_2' would need itself, through 'add': merged collectives lie on one path. Leave "
        "one out."
    )
    assert why(f, PLAIN, BUCKET) == text
    assert why(f, PLAIN, Bucket((GATHER, GATHER_1), "coalesced")) == text


def test_a_path_that_only_the_other_bucket_makes() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        one, two = wait(gather(a)), wait(gather(b))
        three, four = wait(scatter(one.sin())), wait(scatter(two.cos()))
        five, six = wait(gather(three * 2)), wait(gather(four * 3))
        return [five, six]

    across = [Bucket((GATHER, f"{GATHER}_3")), Bucket((GATHER_1, f"{GATHER}_2"))]
    gm = trace(f, *PLAIN)
    for one in across:
        assert why_not(gm, one) is None
    said = why_not(gm, *across)
    assert said is not None
    assert said.startswith(
        "'bucket_all_gather_into_tensor_2' and 'bucket_all_gather_into_tensor_1_2' would need itself"
    )


def test_hazards_count_as_paths() -> None:
    said = why_not(GRAPHS["hazards"](), Bucket((GATHER_1, f"{GATHER}_3")))
    assert said == (
        "'bucket_all_gather_into_tensor_1_2' would need itself, through 'copy_': merged collectives lie on one path. "
        "Leave one out."
    )


def test_waits_and_looks() -> None:
    def unwaited(a: Tensor, b: Tensor) -> list[Tensor]:
        return [gather(a), wait(gather(b)) + 1]

    def early(a: Tensor, b: Tensor) -> list[Tensor]:
        launched = gather(a)
        return [launched.view(-1), wait(launched), wait(gather(b))]

    def together(a: Tensor, b: Tensor) -> list[Tensor]:
        return WAIT_TENSORS([gather(a), gather(b)])

    needs = "{!r} needs the launch of 'all_gather_into_tensor' itself, not its wait: a rewrite would lose that."
    assert why(unwaited, PLAIN, BUCKET) == needs.format("output")
    assert why(early, PLAIN, BUCKET) == needs.format("view")
    assert why(together, PLAIN, BUCKET) == needs.format("wait_tensors")

    def lost(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(gather(a)), wait(gather(b))]

    gm = trace(lost, *PLAIN)
    output = next(node for node in gm.graph.nodes if node.op == "output")
    waits = list(output.all_input_nodes)
    output.args = ([waits[1]],)
    gm.graph.erase_node(waits[0])
    assert why_not(gm, BUCKET) == "'all_gather_into_tensor' has 0 waits: it needs one."


def test_results_that_must_be_tensors_of_their_own() -> None:
    def written(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(scatter(a)).mul_(2.0), wait(scatter(b))]

    def strided(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(scatter(a)) + 1, torch.as_strided(wait(scatter(b)), (2, 4), (8, 1), 0) + 1]

    def viewed(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(scatter(a)) + 1, wait(scatter(b)).view(torch.int16) + 1]

    scatters = Bucket((SCATTER, SCATTER_1))
    assert why(written, PLAIN, scatters) == (
        "something writes to the result of 'reduce_scatter_tensor': it must stay a tensor of its own."
    )
    addressed = "the result of 'reduce_scatter_tensor_1' is looked at by its address: it must stay a tensor of its own."
    for f in (strided, viewed):
        assert why(f, PLAIN, scatters) == addressed
        assert why(f, PLAIN, Bucket(scatters.members, "coalesced")) is None
        assert why(f, PLAIN, Split(SCATTER_1)) is None
        assert alike_of(trace(f, *PLAIN)) == {SCATTER: "float32 sum"}


def test_parts_start_where_kernels_expect_them() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(scatter(a)), wait(scatter(b))]

    odd = [(4, 3), (4, 8)]
    assert why(f, odd, Bucket((SCATTER, SCATTER_1))) == (
        "the result of 'reduce_scatter_tensor' has 24 bytes, no multiple of 16: packed, the next one would start where "
        "kernels do not expect it."
    )
    assert why(f, odd, Bucket((SCATTER, SCATTER_1), "coalesced")) is None
    assert why(two, odd, BUCKET) is None  # gathers are copied out
    assert alike_of(trace(f, *odd)) == {SCATTER_1: "float32 sum"}


def test_values_that_are_not_known() -> None:
    def turned(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(gather(a.t())), wait(gather(b))]

    assert why(turned, [(4, 8), (4, 8)], BUCKET) == (
        "the input of 'all_gather_into_tensor' is not contiguous, its strides are (1, 8)."
    )
    assert why(two, [(0, 8), (4, 8)], BUCKET) == "the input of 'all_gather_into_tensor' is empty."
    gm = trace(two, *PLAIN)
    wait_node = next(node for node in gm.graph.nodes if node.name == "wait_tensor_1")
    value = wait_node.meta.pop("val")
    assert why_not(gm, BUCKET) == "the result of 'all_gather_into_tensor_1' is no fake tensor: its shape is not known."
    wait_node.meta["val"] = value.new_empty((4, 16))
    assert why_not(gm, Bucket((GATHER, GATHER_1), "coalesced")) == (
        "the result of 'all_gather_into_tensor_1' would be ((8, 8), (8, 1), torch.float32, device(type='cpu')) and was "
        "((4, 16), (16, 1), torch.float32, device(type='cpu'))."
    )


def test_symbolic_shapes() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        inputs = [mode.from_tensor(torch.empty(4, 8)) for _ in range(2)]
    gm = make_fx(two, tracing_mode="symbolic")(torch.empty(4, 8), torch.empty(6, 8))
    del inputs
    said = why_not(gm, BUCKET)
    assert said is not None
    assert said.startswith("the input of 'all_gather_into_tensor' has a symbolic shape, (")


def test_groups_that_also_send() -> None:
    gm = trace(two, *PLAIN)
    with mock.patch("overlap_sched.fx.rewrites.facts.GraphFacts.sends", return_value=True):
        assert why_not(gm, BUCKET) == (
            "process group '0' of 'all_gather_into_tensor' also sends or receives: its order must stay."
        )
        assert why_not(gm, Stream(GATHER)) == "process group '0' also sends or receives: its order must stay."


def test_reductions_that_would_change_bits() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(reduce(a, op="sum")), wait(reduce(b, op="sum"))]

    for one in (Bucket(("all_reduce", "all_reduce_1")), Split("all_reduce")):
        said = why(f, PLAIN, one)
        assert said is not None
        assert said.startswith("'all_reduce' is a sum of float32 on ranks of an unknown number (all_reduce): where")
    assert alike_of(trace(f, *PLAIN)) == {}


def test_keeping_and_gathering_again() -> None:
    def both(a: Tensor, b: Tensor) -> list[Tensor]:
        return [wait(gather(a)), wait(gather(a))]

    assert why(both, PLAIN, Keep(GATHER, GATHER_1)) == (
        "the graph returns the results of 'all_gather_into_tensor' and 'all_gather_into_tensor_1': one tensor must not "
        "stand for both."
    )
    assert why(both, PLAIN, Keep(GATHER_1, GATHER)) == (
        "'all_gather_into_tensor' is gathered before 'all_gather_into_tensor_1': name them in their order."
    )
    assert why_not(GRAPHS["hazards"](), Keep(GATHER, f"{GATHER}_3")) is not None
    written = why_not(GRAPHS["hazards"](), Regather(GATHER, ("mul",)))
    assert written == (
        "something writes to the input of 'all_gather_into_tensor': a later gather of it may give something else."
    )
    whole = GRAPHS["whole"]()
    assert why_not(whole, Regather(SCATTER, ("output",))) == (
        "'reduce_scatter_tensor' is 'reduce_scatter_tensor': only gathers are kept or gathered again."
    )


def test_what_was_written_to_between_two_casts_is_not_gathered_once() -> None:
    def written_between(a: Tensor) -> list[Tensor]:
        first = wait(gather(a.to(torch.bfloat16)))
        a.add_(1.0)
        return [first + 1, wait(gather(a.to(torch.bfloat16))) + 1]

    assert why(written_between, PLAIN[:1], Keep(GATHER, GATHER_1)) == (
        "'all_gather_into_tensor' and 'all_gather_into_tensor_1' are not two gathers of one tensor in one group."
    )


def test_a_second_communicator_must_be_there() -> None:
    known = {"0": [0, 1]}
    with mock.patch.object(again, "live_ranks", known.get):
        assert why(two, PLAIN, Stream(GATHER)) == (
            "there is no second communicator '0/2'. Make it on all ranks before compiling: "
            "overlap_sched.distributed.second_communicators()."
        )
        known["0/2"] = [0, 1]
        assert why(two, PLAIN, Stream(GATHER)) is None


def test_coalesced_gathers_over_gloo() -> None:
    with mock.patch.object(backends, "over_gloo", return_value=True):
        assert why(two, PLAIN, Bucket((GATHER, GATHER_1), "coalesced")) == (
            "'bucket_all_gather_into_tensor_2' would be a coalesced all_gather over gloo, where several in flight "
            "damage memory. Use form='copied'."
        )
        assert why(two, PLAIN, BUCKET) is None


def test_orders_that_are_none() -> None:
    gm = trace(two, *PLAIN)
    before = described(gm.graph)
    names = [node.name for node in prepared(gm)]
    for wrong, text in (
        (
            names[:-1],
            "the order has 16 of the 17 nodes of the rewritten graph: it lacks ['output'] and has [] that are",
        ),
        ([*names, "more"], "the order has 17 of the 17 nodes of the rewritten graph: it lacks [] and has ['more']"),
        ([*names[:-1], names[0]], "the order has 17 of the 17 nodes of the rewritten graph: it lacks ['output']"),
        (names[::-1], "the order has 'output' before 'add', which it needs."),
    ):
        with pytest.raises(RewriteError) as refused:
            prepare(gm, [BUCKET], wrong)
        assert str(refused.value).startswith(text)
        assert described(gm.graph) == before
    last = [names[0], names[1], *names[2:]]
    prepare(gm, [BUCKET], ["all_gather.launch", *last]).commit()
    assert [node.name for node in gm.graph.nodes] == names


def prepared(gm: fx.GraphModule) -> list[fx.Node]:
    pending = prepare(gm, [BUCKET])
    order = list(pending.order)
    pending.undo()
    return order


def test_a_graph_without_a_module() -> None:
    graph = trace(two, *PLAIN).graph
    rewrite_graph(graph, [BUCKET])
    assert any(node.name == "bucket_all_gather_into_tensor_2" for node in graph.nodes)
    assert not any(node.target is ATEN.view.dtype for node in graph.nodes)
