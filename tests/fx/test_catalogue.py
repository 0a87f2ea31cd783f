"""The catalogue against torch's own list of registered operators: no namespace, group or tag of torch is missing."""

import subprocess
import sys

import pytest
import torch
from torch._ops import OpOverload

from overlap_sched.fx import catalogue
from overlap_sched.fx.collectives import names_a_group
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.operators import traits_of
from tests.fx.test_fx_hazards import Builder, hazards_of
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
    found = []
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, rest = full.split("::")
        name, _, overload = rest.partition(".")
        if namespace in catalogue.TORCH:
            packet = getattr(getattr(torch.ops, namespace), name, None)
            if packet is not None and (overload or "default") in packet.overloads():
                found.append(getattr(packet, overload or "default"))
    return found


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
    elsewhere = {"ao::wait_tensor", "inductor_prims::inductor_reserve_rng_state"}  # registered on import
    assert listed - names.keys() <= elsewhere


def test_batch_norm_writes_its_running_statistics() -> None:
    b = Builder()
    x, mean, var = b.input("x"), b.input("mean"), b.input("var")
    for node in (mean, var):
        node.meta["val"] = b.tensor(4)
    b.call("before", ATEN.mul.Tensor, mean, 2, val=b.tensor(4))
    norm = (x, None, None, mean, var, True, 0.1, 1e-5)
    b.call("norm", ATEN.native_batch_norm.default, *norm, val=(b.tensor(4, 4), b.tensor(4), b.tensor(4)))
    b.call("after", ATEN.mul.Tensor, var, 2, val=b.tensor(4))
    assert hazards_of(b.done(x)) == {("before", "norm"), ("norm", "after")}


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
