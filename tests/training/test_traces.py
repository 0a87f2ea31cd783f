"""``scripts/train.py --trace``: fresh traces of gloo ranks, matched against the graphs of the same run."""

import json
from pathlib import Path

import pytest

from llama_repro.training.arguments import parse
from overlap_sched.cost.profile import Profile, read_traces
from overlap_sched.dump import load_dump
from overlap_sched.errors import OptionsError
from overlap_sched.fx import lift
from overlap_sched.fx.profile import lifted_with_profile
from tests.training.test_two_ranks import SCHEDULED, SCRIPT, common, torchrun


def test_emulated_collectives_are_not_traced() -> None:
    with pytest.raises(OptionsError) as error:
        parse(["--trace", "there", "--slow-network", "1"])
    assert str(error.value) == (
        "--trace records real collectives, --slow-network emulates them: leave one of the two out."
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_fresh_traces_of_two_ranks(tmp_path: Path) -> None:
    """What ran is in our order, the graph that is written in its own: harder than without us."""
    folder, out = tmp_path / "traces", tmp_path / "out.json"
    how = (*common("fsdp", "bf16", 2), *SCHEDULED, "--steps", "2")
    torchrun(SCRIPT, *how, "--trace", str(folder), "--json", str(out))
    assert len(json.loads(out.read_text())["losses"]) == 2  # those traced are not among them
    traces = read_traces([folder / "rank0.json.gz", folder / "rank1.json.gz"])
    assert [len(trace.steps) for trace in traces] == [3, 3]

    def matched(graph: str) -> Profile:
        return lifted_with_profile(lift(load_dump(folder / graph).gm), traces)[1]

    for name, collectives in (("graph-0.py", 21), ("graph-1.py", 41)):
        profile = matched(name)
        assert profile.runs == 3 * 2
        assert profile.share() > 0.98
        by_order = [node for node, m in zip(profile.sought, profile.measured, strict=True) if m and m.how == "order"]
        assert sum(node.collective for node in by_order) == collectives
        assert profile.share("shapes") == 0.0
        assert profile.fused_us > 0.0
        assert profile.skew_us is not None
        assert profile.skew_us >= 0.0
