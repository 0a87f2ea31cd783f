"""Collectives of as many rows as only the data knows."""

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched.fx.reader import read_graph


def test_a_gather_of_an_unbacked_number_of_rows_is_read() -> None:
    shapes = ShapeEnv()
    graph = fx.Graph()
    with FakeTensorMode(shape_env=shapes):
        rows = shapes.create_unbacked_symint()
        sent, gathered = torch.empty(rows, 4), torch.empty(2 * rows, 4)
    x = graph.placeholder("x")
    launch = graph.call_function(torch.ops._c10d_functional.all_gather_into_tensor.default, (x, 2, "0"))
    wait = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (launch,))
    x.meta["val"], launch.meta["val"], wait.meta["val"] = sent, gathered, gathered
    graph.output((wait,))
    assert read_graph(graph).launch_of == {2: 1}
