"""Launches and waits that take time of the compute stream, as over gloo: fewer of them are worth a bucket."""

from dataclasses import replace

import pytest

from overlap_sched import Kind, Node, Options, Problem, schedule
from overlap_sched.judge.validate import violation
from overlap_sched.problem import FINISH, OF_HOST
from overlap_sched.transform.apply import apply, refusal, writes
from overlap_sched.transform.plan import most_gain_us, plan, records, wanted_of
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket, Keep, Regather, Rewrite
from tests.support.sharded import (
    FINISH_US,
    HOST_PRICES,
    LAUNCH_US,
    PRICES,
    US_PER_BYTE,
    OnHost,
    on_host,
    sharded,
    whole_step,
)

HIDDEN = on_host(sharded([[1, 1, 1]] * 4, compute_us=100.0))
"""Each collective takes about 11 us, and lies behind 100 us of compute: nothing is gained on their stream."""


def host_us(problem: Problem) -> float:
    return sum(node.time_us for node in problem.nodes if node.op in OF_HOST)


def test_nothing_is_exposed_and_fewer_launches_are_worth_a_bucket() -> None:
    found = plan(HIDDEN, HOST_PRICES, Options(rewrites=("bucket",), headroom="200%", allocator="none"))
    after = found.schedule.problem
    assert found.rewrites
    assert violation(after, found.schedule.order) is None
    saved_us = host_us(HIDDEN) - host_us(after)
    assert saved_us == (LAUNCH_US + FINISH_US) * (len(HIDDEN.collectives) - len(after.collectives)) > 0.0
    assert found.schedule.scheduled.step_us < found.without.scheduled.step_us - saved_us / 2


@pytest.mark.parametrize(
    ("plain", "rewrite", "launches"),
    [
        (sharded([[1, 1, 1]] * 4), Bucket(("gather0_0", "gather0_1")), -1),
        (whole_step([1, 2]), Keep("gather0f", "gather0b"), -1),
        (whole_step([1, 2], again=False), Regather("gather0f", ("backward0",)), 1),
    ],
)
def test_what_a_rewrite_costs_is_with_launches_and_waits(plain: Problem, rewrite: Rewrite, launches: int) -> None:
    """Beside copies, as without them."""
    problem = on_host(plain)
    (with_host,) = records(problem, apply(problem, [rewrite], HOST_PRICES), [rewrite])
    (without,) = records(plain, apply(plain, [rewrite], PRICES), [rewrite])
    assert with_host.compute_us - without.compute_us == pytest.approx(launches * (LAUNCH_US + FINISH_US))
    assert with_host.stream_us == pytest.approx(without.stream_us)


def test_a_finish_node_stands_right_before_its_wait() -> None:
    """In an order with something between launches and waits, too."""
    order = schedule(HIDDEN, Options(headroom="200%", allocator="none")).order
    after = apply(HIDDEN, [Bucket(("gather1_0", "gather1_1"))], HOST_PRICES, order=order)
    launch, wait = (after.names(after.original_order).index(f"bucket_gather1_0_2{part}") for part in ("", "_wait"))
    assert wait > launch + 2
    assert after.nodes[wait - 1].name == f"bucket_gather1_0_2_wait.{FINISH}"


def test_the_most_that_can_be_gained_is_with_launches_and_waits() -> None:
    """Latency is nothing: what is left is the host's time of all collectives."""
    free = Prices(OnHost(latency_us=0.0))
    plain = sharded([[1, 1, 1]] * 2)
    nodes = [n._replace(time_us=US_PER_BYTE * n.bytes) if n.kind is Kind.COLLECTIVE else n for n in plain.nodes]
    problem = on_host(replace(plain, nodes=tuple(nodes)))
    gain_us = most_gain_us(problem, free, None, wanted_of(Options(rewrites=("bucket",)), ("copied",)))
    assert gain_us == pytest.approx((LAUNCH_US + FINISH_US) * len(problem.collectives))


@pytest.mark.parametrize("op", OF_HOST)
def test_the_hosts_time_is_nothing_that_runs_again_or_writes(op: str) -> None:
    node = Node(f"gather.{op}", Kind.COMPUTE, (0,), time_us=3.0, op=op)
    assert refusal(node) == "is a compute"
    assert not writes(node)
