"""On which nodes groups are: by ranks, by the mesh, by what is assumed; what is assumed is said."""

import pytest

from overlap_sched.cost.cluster import MeshDimension
from overlap_sched.cost.placement import SHORT, DataflowNode, Facts, Nodes, place, ranks_along, sharding_groups
from overlap_sched.errors import CostError
from overlap_sched.problem import Group

MESH = (MeshDimension("pp", 2), MeshDimension("fsdp", 8), MeshDimension("tp", 8))
INSIDE, SPREAD = Group(8, True), Group(8, False, 8)


def groups(facts: dict[str, Facts], on: Nodes) -> dict[str, Group]:
    return {name: placement.group for name, placement in place(facts, on).items()}


def test_ranks_decide_never_the_size() -> None:
    known = {
        "near": Facts(8, tuple(range(8, 16))),
        "far": Facts(8, tuple(range(0, 64, 8))),
        "across the edge": Facts(2, (7, 8)),
        "pairs": Facts(4, (0, 1, 8, 9)),
    }
    placed = place(known, Nodes(8))
    assert {name: one.group for name, one in placed.items()} == {
        "near": INSIDE,
        "far": SPREAD,
        "across the edge": Group(2, False, 2),
        "pairs": Group(4, False, 2),
    }
    assert not any(one.assumed for one in placed.values())


def test_the_mesh_places_what_has_a_size_of_its_own() -> None:
    placed = place({"0": Facts(128), "1": Facts(64), "2": Facts(2)}, Nodes(8, mesh=MESH))
    assert [one.group for one in placed.values()] == [Group(128, False, 16), Group(64, False, 8), Group(2, False, 2)]
    assert not any(one.assumed for one in placed.values())


def test_of_two_dimensions_alike_the_sharding_group_is_the_outer_one() -> None:
    placed = place({"a": Facts(8, shards=True), "b": Facts(8)}, Nodes(8, mesh=MESH))
    assert [one.group for one in placed.values()] == [SPREAD, INSIDE]
    assert placed["a"].assumed == (
        "process group 'a' (8 ranks) may be fsdp or tp of the mesh: taken as fsdp, on 8 nodes, 1 rank on each; say "
        "otherwise with --group a=DIMENSION"
    )


def test_tensor_parallel_fills_the_node_so_fsdp_crosses_it() -> None:
    placed = place({"0": Facts(8, shards=True), "1": Facts(8)}, Nodes(8))
    assert [one.group for one in placed.values()] == [SPREAD, INSIDE]
    assert placed["0"].assumed == (
        "process group '0' (8 ranks): its ranks are not known, assumed on 8 nodes, 1 rank on each (groups inside it "
        "take 8 neighbouring ranks); say otherwise with --group 0=RANK,RANK,... or --mesh NAME=SIZE,..."
    )


def test_as_large_as_the_others_together_is_all_of_them() -> None:
    facts = {"0": Facts(64, shards=True), "513": Facts(8, shards=True), "521": Facts(8)}
    assert groups(facts, Nodes(8)) == {"0": Group(64, False, 8), "513": SPREAD, "521": INSIDE}
    assert groups({"0": Facts(64, shards=True), "1": Facts(8)}, Nodes(8))["0"] == Group(64, False, 64)
    assert groups({"0": Facts(4, shards=True), "1": Facts(2)}, Nodes(8))["0"] == Group(4, True)
    assert groups({"0": Facts(4, shards=True), "1": Facts(4)}, Nodes(8))["0"] == Group(4, False, 2)


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(CostError) as error:
        place({"dp": Facts(64)}, Nodes(8, single=True))
    assert str(error.value) == (
        "process group 'dp' has 64 ranks, but the cluster is one node of 8. Choose a cluster with several (--cluster), "
        "or give [across] in its file."
    )
    with pytest.raises(CostError) as error:
        place({"dp": Facts(5)}, Nodes(8, mesh=MESH))
    assert str(error.value) == (
        "process group 'dp' has 5 ranks, but no dimension of the mesh pp=2, fsdp=8, tp=8, nor neighbours together, has "
        "as many. Correct --mesh, or give its ranks: --group dp=RANK,RANK,..."
    )
    with pytest.raises(CostError) as error:
        place({"dp": Facts(2, (0, 128))}, Nodes(8, mesh=MESH))
    assert str(error.value) == (
        "process group 'dp' has rank 128, but the mesh has ranks 0 to 127. Correct --group or the mesh."
    )
    with pytest.raises(CostError, match="has rank 9, but the cluster is one node of ranks 0 to 7"):
        place({"dp": Facts(2, (0, 9))}, Nodes(8, single=True))


def test_ranks_along_a_mesh() -> None:
    assert ranks_along(MESH, "tp") == tuple(range(8))
    assert ranks_along(MESH, "fsdp") == tuple(range(0, 64, 8))
    assert ranks_along(MESH, "pp+fsdp") == tuple(range(0, 128, 8))
    with pytest.raises(CostError) as error:
        ranks_along(MESH, "ep")
    assert str(error.value) == (
        "the mesh is pp=2, fsdp=8, tp=8: it has no 'ep'. Name a dimension, or neighbours joined by +, outermost first."
    )


def test_what_gathers_parameters_and_reduces_gradients_shards() -> None:
    def graph(casts: int) -> list[DataflowNode]:
        steps = [DataflowNode((), False)]
        steps += [DataflowNode((k,), True) for k in range(casts)]
        steps.append(DataflowNode((casts,), True, "all_gather_into_tensor", "fsdp"))
        steps.append(DataflowNode((len(steps) - 1,), True))
        steps.append(DataflowNode((len(steps) - 1,), True, "all_reduce", "tp"))
        steps += [DataflowNode((len(steps) - 1 + k,), True) for k in range(SHORT + 1)]
        steps.append(DataflowNode((len(steps) - 1,), True, "reduce_scatter_tensor", "fsdp"))
        steps.append(DataflowNode((len(steps) - 1,), False))
        return steps

    assert sharding_groups(graph(1)) == {"fsdp"}
    assert sharding_groups(graph(SHORT + 1)) == {"fsdp"}  # half of them: the reduce_scatter
    both = [*graph(SHORT + 1)[:-2]]
    assert sharding_groups(both) == set()
