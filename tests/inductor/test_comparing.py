"""Before and after in one's own loop. No test looks at how long anything takes."""

from collections.abc import Iterator
from itertools import pairwise
from unittest import mock

import pytest
import torch

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OptionsError
from overlap_sched.inductor import comparing
from overlap_sched.inductor.comparing import Comparison, Timed, in_turns
from tests.support.inductor.models import Net, step


def test_the_two_take_turns_and_what_compiles_is_not_among_them() -> None:
    calls: list[str] = []
    clock: Iterator[float] = iter(float(2**k) for k in range(100))  # each interval is told from all others
    with mock.patch.object(comparing.time, "perf_counter", side_effect=clock):
        found = in_turns(lambda: calls.append("before"), lambda: calls.append("after"), steps=3, warmup=2)
    turns = ["before", "after", "after", "before", "before", "after"]
    assert calls == ["before", "before", "after", "after", *turns]
    took = [(b - a) * 1e6 for a, b in list(pairwise(float(2**k) for k in range(20)))[::2]]
    assert found.before == Timed(took[0], (took[4], took[7], took[8]))
    assert found.after == Timed(took[2], (took[5], took[6], took[9]))


def test_what_is_shown() -> None:
    found = Comparison(Timed(8.2e6, (1200.0, 1000.0, 1100.0)), Timed(9.1e6, (900.0, 1010.0, 990.0), 3 * 2**30))
    assert str(found) == (
        "without overlap_sched  1.10 ms (median of 3 steps; 1.00 ms to 1.20 ms); first step, with "
        "compiling, 8,200.0 ms\n"
        "with overlap_sched     990.0 us (median of 3 steps; 900.0 us to 1.01 ms), peak 3.000 GiB; first step, with "
        "compiling, 9,100.0 ms\n"
        "median step -10.0 %, shorter in 2 of 3 turns"
    )


@pytest.mark.parametrize(("steps", "warmup"), [(0, 3), (20, 0)])
def test_without_steps_there_is_nothing_to_compare(steps: int, warmup: int) -> None:
    with pytest.raises(OptionsError) as error:
        overlap_sched.compare(print, torch.relu, steps=steps, warmup=warmup)
    assert str(error.value) == (
        f"steps is {steps} and warmup is {warmup}; both are 1 at least: the first step compiles."
    )


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_both_are_kept_and_only_one_of_them_is_ours() -> None:
    model, results = Net(blocks=2, ranks=2), []
    torch._dynamo.utils.counters.clear()
    overlap_sched.compare(
        lambda compiled: results.append(step(model, compiled)), model, Options(headroom="20%"), steps=2, warmup=1
    )
    assert len(results) == 6
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # each compiled once
    kinds = sorted(report.name.split()[0] for report in overlap_sched.reports())
    assert kinds == ["backward", "forward"]  # one of the two told us
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
