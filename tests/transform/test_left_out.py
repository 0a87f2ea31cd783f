"""The step of a plan without one of its rewrites."""

import pytest

from overlap_sched import Options
from overlap_sched.transform.apply import apply
from overlap_sched.transform.plan import left_out, plan, rewrites_without
from overlap_sched.transform.rewrites import Bucket, Stream
from tests.support.sharded import PRICES, sharded

BUCKETS = Options(rewrites=("bucket",), headroom="100%")
BOUND = sharded([[2, 2, 2]] * 4, compute_us=4.0)
"""Each of 24 collectives takes 12 us, 10 of them latency; compute takes 64."""


def test_what_a_bucket_buys_where_the_network_binds_is_its_latency() -> None:
    found = plan(BOUND, PRICES, BUCKETS)
    left = left_out(found, PRICES)
    assert [one.rewrite for one in left] == [record.rewrite for record in sorted(found.records, key=lambda one: -one.stream_us)[:12]]
    saved = {record.rewrite: record.stream_us for record in found.records}
    for one in left:
        assert isinstance(one.rewrite, Bucket)
        assert one.why_not == ""
        assert one.with_us == pytest.approx(found.schedule.scheduled.step_us, rel=0.1)
        assert 0 < one.bought_us <= saved[one.rewrite] * (1 + 1e-9)
    assert left_out(found, PRICES, most=1) == left[:1]
    assert left_out(found, PRICES) == left


def test_members_of_a_bucket_stay_on_the_stream_on_which_it_was() -> None:
    bucket, other = Bucket(("scatter0_0", "scatter0_1"), "coalesced"), Bucket(("gather0_0", "gather0_1"), "coalesced")
    made = (bucket, other, Stream(bucket.name), Stream("scatter1_0"))
    rest = rewrites_without(made, bucket)
    assert rest == (other, Stream("scatter0_0"), Stream("scatter0_1"), Stream("scatter1_0"))
    assert rewrites_without(made, other) == (bucket, Stream(bucket.name), Stream("scatter1_0"))
    groups = {node.name: node.group for node in apply(BOUND, rest, PRICES).nodes}
    assert (groups["scatter0_0"], groups["scatter0_1"]) == ("fsdp/2", "fsdp/2")
