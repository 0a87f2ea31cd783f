"""torch.compile within a memory limit: the same bits, in less; whatever fails is cut as torch does it."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomPartitionerFn

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import Agreement, Verdict
from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor import agree, partitioning
from overlap_sched.inductor.partitioning import FitPartitioner
from overlap_sched.inductor.settings import Settings
from tests.support.joint_ranks import Block, Checkpointed, Normed, Tied, blocks, dropping, step
from tests.support.ranks import found_once

MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": blocks,
    "dropout": dropping,
    "batch norm": Normed,
    "tied weights": Tied,
}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    overlap_sched.clear_reports()
    yield
    torch.compiler.reset()
    overlap_sched.disable()
    partitioning._partitions.clear()


def same(got: list[Tensor], want: list[Tensor]) -> bool:
    return len(got) == len(want) and all(map(torch.equal, got, want))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_in_less_memory(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    plain = step(model)
    assert overlap_sched.partitions() == ()
    assert same(step(model, memory_limit="80%"), plain)
    (one,) = overlap_sched.partitions()
    assert one.found is not None
    assert one.reason is None
    assert one.found.limit_bytes is not None
    assert one.found.best.marks.again
    assert not one.found.best.marks.kept
    assert one.found.best.peak_bytes <= one.found.limit_bytes < one.found.before.peak_bytes
    assert one.found.best.saved_bytes < one.found.before.saved_bytes
    assert "more run again in backward, " in one.line


@pytest.mark.private
def test_the_lowest_peak_within_a_step_limit() -> None:
    model = Block()
    plain = step(model)
    assert same(step(model, max_slowdown=1.0), plain)
    found = overlap_sched.partitions()[0].found
    assert found is not None
    assert found.limit_us is not None
    assert found.best.step_us <= found.limit_us == 2 * found.before.step_us
    assert found.best.peak_bytes < found.before.peak_bytes


@pytest.mark.private
def test_a_failure_leaves_the_cut_to_torch() -> None:
    model = Block()
    plain = step(model)
    said = "overlap_sched leaves '.*' to torch's partitioner: RuntimeError: out of luck"
    with mock.patch.object(partitioning, "fit_joint", side_effect=RuntimeError("out of luck")):
        with pytest.warns(OverlapSchedWarning, match=said) as warned:
            assert same(step(model, memory_limit="80%"), plain)
        assert len(warned) == 1
        with pytest.raises(BackendCompilerFailed, match=r"fitting .* failed: RuntimeError: out of luck"):
            step(model, memory_limit="80%", options=Options(strict=True))


@pytest.mark.private
@pytest.mark.parametrize(
    ("answer", "known", "stops"),
    [
        (Agreement(False, Verdict(False, "the store failed"), in_doubt=True), None, "store failed"),
        (Agreement(False, Verdict(False, "rank 1 is missing", missing=(1,))), None, "rank 1 is missing"),  # a part
        (None, Entry(("joint",), (), True, '[[], ["no such gather"], ""]'), "KeyError: 'no such gather'"),
        (None, Entry(("joint",), (), True, '[[], [], "other launches"]'), "launch otherwise"),
    ],
    ids=["in doubt", "alone", "another graph", "another cut"],
)
def test_a_rank_that_cannot_cut_as_the_others_do_stops(answer: Any, known: Entry | None, stops: str) -> None:
    several = {"launches_in": lambda nodes: list(nodes)[:1], "ask": lambda *_: answer, "asks": lambda _: True}
    several |= {"find_in_force": lambda launches, _: known, "compiled_otherwise": lambda _: True}
    with mock.patch.multiple(agree, **several), pytest.raises(Exception, match=rf"SequenceError[\s\S]*{stops}"):
        step(blocks(), memory_limit="80%")


@pytest.mark.private
def test_a_cut_that_torch_refuses_is_none() -> None:
    real, calls = min_cut_rematerialization_partition, []

    def second_fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("infinite capacity")
        return real(*args, **kwargs)

    with mock.patch("overlap_sched.inductor.eager.min_cut_rematerialization_partition", second_fails):
        step(blocks(), memory_limit="80%")
    (one,) = overlap_sched.partitions()
    assert one.reason is None
    assert len(calls) > 2


@pytest.mark.private
def test_a_limit_that_nothing_keeps() -> None:
    model = Block()
    plain = step(model)
    said = "to torch's partitioner: no cut was found below 1 B; the lowest has "
    with pytest.warns(OverlapSchedWarning, match=said):
        assert same(step(model, memory_limit="1B"), plain)
    step(model, memory_limit="100%")
    assert overlap_sched.partitions()[-1].line.endswith("cut as torch does: it answers the question best")


@pytest.mark.slow
def test_checkpoints_with_random_numbers_are_left_alone() -> None:
    model = Checkpointed()
    plain = step(model)
    with pytest.warns(OverlapSchedWarning, match="draws random numbers and is to run again"):
        assert same(step(model, memory_limit="80%"), plain)


class Theirs(CustomPartitionerFn):
    """A partitioner that somebody else has set; torch copies its settings, so calls of all copies are counted."""

    calls: ClassVar[int] = 0

    def __call__(self, gm: Any, joint_inputs: Any, **given: Any) -> Any:
        Theirs.calls += 1
        return min_cut_rematerialization_partition(gm, joint_inputs, **given)

    def uuid(self) -> str:
        return "theirs"


@pytest.mark.slow
def test_inductor_within_a_limit_around_another_partitioner() -> None:
    """Fused kernels may round otherwise where they hold other operators."""
    model, theirs, before = Block(), Theirs(), Theirs.calls
    with config.patch(custom_partitioner_fn=theirs, fx_graph_cache=False):
        plain = step(model, backend="inductor")
        got = step(model, backend="inductor", memory_limit="85%")
        assert config.custom_partitioner_fn is theirs
    assert Theirs.calls >= before + 3
    assert [one.reason for one in overlap_sched.partitions()] == [None]
    for a, b in zip(got, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_the_cache_key_is_of_the_question() -> None:
    def key(before: CustomPartitionerFn | None = None, **how: Any) -> str:
        return FitPartitioner(Settings(**how), before).uuid()

    assert key(memory_limit="80%") == key(memory_limit="80%") != key(memory_limit="70%")
    assert key(max_slowdown=0.1) != key(max_slowdown=0.2)
    assert key(Theirs(), memory_limit="80%") == f"theirs {key(memory_limit='80%')}"
    unknown = {"memory_limit": "80%", "cost": lambda node: 1.0}
    assert key(**unknown) != key(**unknown)  # never None: torch would then cache as if we were not there


def test_off_is_off() -> None:
    before = config.custom_partitioner_fn
    with overlap_sched.enabled(memory_limit="80%"):
        outer = config.custom_partitioner_fn
        assert isinstance(outer, FitPartitioner)
        with overlap_sched.enabled(memory_limit="70%"):
            inner = config.custom_partitioner_fn
            assert isinstance(inner, FitPartitioner)
            assert inner.before is before
        assert config.custom_partitioner_fn is outer
    assert config.custom_partitioner_fn is before
    assert "custom_partitioner_fn" not in overlap_sched.inductor_options()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_once(tmp_path_factory, "cuts", "tests.support.joint_ranks")


@pytest.mark.slow
def test_results_are_bitwise_those_of_torchs_own_cut(jobs: list[dict[str, Any]]) -> None:
    for rank in jobs:
        for name, case in rank.items():
            plain = rank["plain more" if "more" in name else "plain"]
            ours, theirs = case if isinstance(case, list) else (case["results"], plain["results"])
            assert same(ours, theirs), name


@pytest.mark.slow
def test_all_ranks_use_one_cut(jobs: list[dict[str, Any]]) -> None:
    """What launches otherwise than torch's own cut is followed from then on, whatever the limit."""
    for name in ("less", "more", "follows"):
        one, two = (rank[name] for rank in jobs)
        assert (one["again"], one["kept"]) == (two["again"], two["kept"])
        assert one["reasons"] == two["reasons"] == [None]
    assert jobs[0]["less"]["again"][0]
    assert not jobs[0]["less"]["kept"][0]
    assert jobs[0]["more"]["kept"][0]
    assert not jobs[0]["more"]["again"][0]
    assert jobs[0]["follows"]["again"] == jobs[0]["less"]["again"]


@pytest.mark.slow
def test_where_the_ranks_differ_all_use_torchs_own_cut(jobs: list[dict[str, Any]]) -> None:
    for name in ("one rank fails", "other limits"):
        for rank in jobs:
            (reason,) = rank[name]["reasons"]
            assert reason is not None, name
    assert "ValueError: broken" in jobs[0]["one rank fails"]["reasons"][0]
