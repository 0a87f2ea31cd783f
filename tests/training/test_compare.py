"""The comparison's table and verdict, from runs written down by hand."""

import copy

import pytest

from llama_repro.training.compare import main, same, table_of


def run(**changed):
    figures = {"exposed_us": 10_000.0, "growth_bytes": 2**20, "matmuls_in_between": 0}
    graph = {"name": "forward 0/0", "used": figures, "schedule_s": 0.5}
    measured = {"kind": "forward", "matmuls_in_between": 3, "growth_bytes": 2**21, "with_copies_bytes": 3 * 2**20}
    whole = {
        "model": "tiny",
        "sharding": "fsdp",
        "ranks": 2,
        "dtype": "bf16",
        "accumulate": 2,
        "losses": [(2.0).hex(), (1.5).hex()],
        "weights": ["a", "b"],
        "typical_step_s": 0.25,
        "compile_s": 3.0,
        "kernels": 7,
        "network_us": [30_000.0, 25_000.0, 28_000.0],
        "peak_bytes": 2**22,
        "graphs": [graph],
        "measured": {"graphs": [measured], "exposed_us": 26_000.0},
    }
    return {**copy.deepcopy(whole), **changed}


def rows(runs):
    table = table_of(runs)
    cells = [list(column.cells) for column in table.columns]
    return {name: values for name, *values in zip(*cells, strict=True)}


def test_what_was_hidden_stands_next_to_what_should_be():
    ours = run(network_us=[30_000.0, 7_000.0, 9_000.0])
    ours["graphs"][0]["used"]["exposed_us"] = 1_000.0
    theirs = run(graphs=[], network_us=[30_000.0, 20_000.0, 20_000.0], losses=[(2.0).hex(), (1.25).hex()])
    found = rows({"none": run(), "overlap_sched": ours, "torch": theirs})
    assert found["exposed, predicted (ms)"] == ["20.00", "2.00", "-"]  # two micro batches
    assert found["exposed, measured (ms)"] == ["25.00", "7.00", "20.00"]
    assert found["waits, gloo and late ranks included (ms)"] == ["28.00", "9.00", "20.00"]
    assert found["hidden, predicted (ms)"] == ["-", "18.00", "-"]
    assert found["hidden, measured (ms)"] == ["-", "18.00", "5.00"]
    assert found["measured / predicted"] == ["-", "100%", "-"]
    assert found["bitwise as none"][1:] == ["2 of 2, weights equal", "1 of 2, weights equal"]
    assert found["peak above graph entry, measured"] == ["2.00, 0.00"] * 3
    assert found["the same with copies of the process group"] == ["3.00, 0.00"] * 3


def test_without_a_slow_network_a_profiled_step_says_what_is_exposed():
    none, ours = run(network_us=None), run(network_us=None)
    ours["measured"]["exposed_us"] = 6_000.0
    found = rows({"none": none, "overlap_sched": ours, "torch": run(network_us=None, graphs=[])})
    assert found["link busy (ms)"] == ["-", "-", "-"]
    assert found["exposed, measured (ms)"] == ["26.00", "6.00", "26.00"]
    assert found["measured / predicted"] == ["-", "-", "-"]  # nothing was predicted to be hidden


def test_losses_and_weights_must_be_the_same():
    assert same(run(), run())
    assert not same(run(losses=[(2.0).hex(), (1.25).hex()]), run())
    assert not same(run(weights=["a", "c"]), run())


@pytest.mark.parametrize("ranks", ["0", "two"])
def test_wrong_usage_is_told(ranks, capsys):
    assert main([ranks]) == 2
    assert f"compare: '{ranks}' is no number of ranks. Usage: compare_training.sh [RANKS]" in capsys.readouterr().out
