"""The catalogue against torch's own list of registered operators: no namespace, group or tag of torch is missing."""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch._ops import OpOverload

from overlap_sched.fx import catalogue
from overlap_sched.fx.operators import Ordering, names_a_group, traits_of
from overlap_sched.fx.reading import read_graph
from tests.fx.test_fx_hazards import Builder, hazards_of
from tests.support import operator_runs
from tests.support.fx_graphs import ATEN

NAMESPACES = """
import torch, torch.distributed, torch._inductor.lowering, torch.distributed._symmetric_memory
import torch.distributed.tensor, torch.distributed._functional_collectives, torch._dynamo.variables.streams
import torch.distributed.fsdp._fully_shard._fsdp_collectives
print(*sorted({name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}))
"""
"""In a process of its own: here tests have registered operators."""


@pytest.fixture(scope="module")
def registered() -> list[OpOverload]:
    """All overloads of torch's own namespaces that are registered here."""
    return operator_runs.registered()


@pytest.mark.slow
def test_every_namespace_of_torch_is_known() -> None:
    told = subprocess.check_output([sys.executable, "-W", "ignore", "-c", NAMESPACES], text=True)
    assert set(told.split()) - catalogue.TORCH == set()


def test_what_takes_a_process_group_communicates(registered: list[OpOverload]) -> None:
    silent = [op for op in registered if any(map(names_a_group, op._schema.arguments)) and traits_of(op).comm is None]
    assert {str(op) for op in silent} <= {"_dtensor.mesh_get_process_group.default"}  # looks it up
    assert len(registered) > 3000


def test_what_has_a_generator_or_its_name_draws_random_numbers(registered: list[OpOverload]) -> None:
    """Besides those tagged; backwards and sizes do not, and some are given the numbers that they use."""
    for op in registered:
        if "generator" in {a.name for a in op._schema.arguments} or torch.Tag.nondeterministic_seeded in op.tags:
            assert traits_of(op).ordering >= Ordering.RANDOM, op


def test_what_is_tagged_synchronises(registered: list[OpOverload]) -> None:
    for op in registered:
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.intersection(op.tags):
            assert traits_of(op).syncs or traits_of(op).comm is not None, op
    assert traits_of(ATEN._local_scalar_dense.default).syncs
    assert traits_of(ATEN.is_nonzero.default).syncs


def test_tables_name_operators_and_arguments_that_exist(registered: list[OpOverload]) -> None:
    """In the one or the other version of torch."""
    names = {op._schema.name: {a.name for a in op._schema.arguments} for op in registered}
    for name, arguments in catalogue.WRITES.items():
        assert name not in names or names[name].issuperset(arguments), name
    listed = {*catalogue.WRITES, *catalogue.SYNCS, *catalogue.VIEWS, *catalogue.RANDOM}
    elsewhere = {
        "ao::wait_tensor",
        "inductor_prims::inductor_reserve_rng_state",
        "fsdp::all_gather_copy_in",
    }  # imported
    assert {name for name in listed - names.keys() if "vllm" not in name} <= elsewhere


READ_ONLY = "backward|functional|no_training|no_update|elemt|quantized"
"""Operators that look at running statistics and leave them as they are."""


def test_running_statistics_are_written_by_all_that_do_not_only_read_them(registered: list[OpOverload]) -> None:
    """Most of these run on a GPU alone."""
    for op in registered:
        given = [a.name for a in op._schema.arguments if a.name in ("running_mean", "running_var")]
        if given and not re.search(READ_ONLY, op._schema.name):
            assert {name for _, name in traits_of(op).writes}.issuperset(given), op


@pytest.mark.parametrize(
    "name",
    ["batch_norm_update_stats", "batch_norm", "_batch_norm_impl_index", "native_batch_norm", "instance_norm", "add_"],
)
def test_what_an_operator_writes_is_seen_and_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = ATEN.add_.Tensor if name == "add_" else getattr(ATEN, name).default
    seen = next(operator_runs.observe(op))
    expected = ["self"] if name == "add_" else ["running_mean", "running_var"]
    assert (seen.writes, operator_runs.unsaid(op, seen)) == (expected, [])
    if name != "add_":
        monkeypatch.delitem(catalogue.WRITES, op._schema.name)
        traits_of.cache_clear()
        assert operator_runs.unsaid(op, seen) == expected
    traits_of.cache_clear()


@pytest.mark.slow
def test_whatever_operators_write_or_draw_is_known() -> None:
    """All that run on a CPU, in a process of their own; those that want what cannot be made up crash, or do not run."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.operator_runs"]
    found = json.loads(subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL))
    assert found["unsaid"] == {}
    assert found["ran"] > 2300
    assert len(found["crashed"]) < 40


def test_batch_norm_writes_its_running_statistics() -> None:
    b = Builder()
    x, mean, var = b.input("x"), b.input("mean"), b.input("var")
    for node in (mean, var):
        node.meta["val"] = b.tensor(4)
    b.call("before", ATEN.mul.Tensor, mean, 2, val=b.tensor(4))
    norm = (x, None, None, mean, var, True, 0.1, 1e-5)
    b.call("norm", ATEN.native_batch_norm.default, *norm, val=(b.tensor(4, 4), b.tensor(4), b.tensor(4)))
    b.call("after", ATEN.mul.Tensor, var, 2, val=b.tensor(4))
    gm = b.done(x)
    assert hazards_of(gm) == {("before", "norm"), ("norm", "after")}
    reading = read_graph(gm.graph)
    assert [reading.nodes[v].name for v in reading.unseen] == ["norm"]  # Inductor goes by schemas


def test_a_sparse_tensor_shares_the_values_that_it_is_made_of() -> None:
    b = Builder()
    indices, values = b.input("indices"), b.input("values")
    indices.meta["val"], values.meta["val"] = b.tensor(1, 4).long(), b.tensor(4)
    with b.mode:
        pair = torch.zeros(1, 4, dtype=torch.long), torch.zeros(4)
        sparse = torch.sparse_coo_tensor(*pair, (8,), check_invariants=False)
    made = b.call("sparse", ATEN.sparse_coo_tensor.indices_size, indices, values, [8], val=sparse)
    b.call("early", ATEN.to_dense.default, made, val=b.tensor(8))
    b.call("write", ATEN.mul_.Tensor, values, 2, val=values.meta["val"])
    b.call("late", ATEN.to_dense.default, made, val=b.tensor(8))
    got = b.call("got", ATEN._values.default, made, val=b.tensor(4))
    b.call("write2", ATEN.mul_.Tensor, got, 2, val=got.meta["val"])
    b.call("read", ATEN.mul.Tensor, values, 2, val=b.tensor(4))
    found = hazards_of(b.done(indices))
    assert {("early", "write"), ("write", "late"), ("late", "write2"), ("write2", "read")} <= found


def test_pools_of_memory_are_fences() -> None:
    if not hasattr(torch.ops.mempool, "begin"):
        pytest.skip("this torch has no pools in graphs")
    assert traits_of(torch.ops.mempool.begin.default).ordering is Ordering.FENCE


@pytest.mark.slow
def test_the_front_end_loads_no_dumps() -> None:
    """Reading dumps is asked for by itself."""
    script = "import sys, overlap_sched.fx; print(*[m for m in sys.modules if m.startswith('overlap_sched.dump')])"
    assert not subprocess.check_output([sys.executable, "-W", "ignore", "-c", script], text=True).strip()
