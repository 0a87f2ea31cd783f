"""One ``[[stage]]`` of a job's file: its blocks, given by numbers or by graphs, and its bytes."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from overlap_sched.cost.cluster.toml_table import TomlTable, shown
from overlap_sched.pipeline.blocks import GraphBlock, left_by
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.pipeline.job import PipelineBlock, PipelineStage


class GraphReader(NamedTuple):
    """Graphs by their paths in a file; ``parameters``: bytes of them in each of this stage, where they are known."""

    graphs: JobGraphs
    source: Callable[[str], GraphSource]
    parameters: int | None = None


def stage_of(table: TomlTable, read: GraphReader) -> PipelineStage:
    """The stage of a table.

    Where only the halves of backward are given, the whole takes both, one after the other.

    Raises:
        CostError: A key is missing, unknown, or of another kind, as of :class:`TomlTable`.
    """
    parameters = table.size("parameters") if "parameters" in table else None
    read = read._replace(parameters=parameters)
    graph, ahead = _given(table, "forward", read)
    pinned = 0 if graph is None else graph.pinned_bytes
    saved = table.size("saved", 0 if graph is None else left_by(graph, ahead.output_bytes))
    static = (pinned if parameters is None else parameters) + table.size("gradients", 0) + table.size("optimizer", 0)
    halves = "input_gradient" in table or "weight_gradient" in table
    kept, half_i, half_w = table.size("kept", 0), None, None
    if halves:
        graph_i, half_i = _given(table, "input_gradient", read)
        if graph_i is not None and "kept" not in table:
            kept = left_by(graph_i, half_i.output_bytes)
        graph_w, half_w = _given(table, "weight_gradient", read)
        half_i, half_w = _measured(graph_i, half_i, saved), _measured(graph_w, half_w, kept)
    if half_i is not None and half_w is not None and "backward" not in table:
        back = _both(half_i, half_w, saved, kept)
    else:
        back = _measured(*_given(table, "backward", read), saved)
        parts = _parted(table.table("backward"), read)
        if halves and parts is not None:
            raise table.error("backward.output_node", "makes halves of backward, which are given: leave one out.")
        if parts is not None:
            kept = table.size("kept", left_by(parts[0], back.output_bytes))
            half_i = _measured(parts[0], replace(back, graph=""), saved)
            half_w = _measured(parts[1], PipelineBlock(0.0), kept)
    return PipelineStage(
        _measured(graph, ahead, saved),
        back,
        half_i,
        half_w,
        saved,
        kept,
        static,
        reduce=_measured(*_given(table, "reduce", read), 0) if "reduce" in table else None,
        step=_measured(*_given(table, "step", read), 0) if "step" in table else None,
    )


def _both(one: PipelineBlock, other: PipelineBlock, saved: int, kept: int) -> PipelineBlock:
    """I and W in one action: what is saved counts to its end, what is kept beyond that is transient."""
    transient = max(one.transient_bytes, kept + other.transient_bytes - saved)
    time_us, exposed_us = one.time_us + other.time_us, one.exposed_us + other.exposed_us
    return PipelineBlock(time_us, transient, one.output_bytes, one.sent_bytes, exposed_us=exposed_us)


def _given(table: TomlTable, key: str, read: GraphReader) -> tuple[GraphBlock | None, PipelineBlock]:
    """The graph of a block if it has one, and the block as its numbers say."""
    block = table.table(key)
    output = block.size("output", 0)
    sent = block.size("send_buffer") if "send_buffer" in block else None
    named = "problem" in block
    graph = read.graphs.whole(read.source(block.text("problem")), read.parameters) if named else None
    time_us = block.quantity("time", "time") if graph is None else 0.0
    transient = block.size("transient", 0) if graph is None else 0
    if key == "backward":
        block.text("output_node", "")
    block.done()
    return graph, PipelineBlock(time_us, transient, output, sent)


def _parted(table: TomlTable, read: GraphReader) -> tuple[GraphBlock, GraphBlock] | None:
    """The halves of a backward's graph, where the table says which node makes what is sent back."""
    node = table.text("output_node", "")
    if not node:
        return None
    if "problem" not in table:
        raise table.error("output_node", "names a node of a graph: give the graph, too (problem).")
    found = read.graphs.halves(read.source(table.text("problem")), node, read.parameters)
    if found is None:
        raise table.error(
            "output_node",
            f"is {shown(node)}, but the graph has no such node, or nothing besides: name the one that makes the "
            "gradient to be sent.",
        )
    return found


def _measured(graph: GraphBlock | None, block: PipelineBlock, held_bytes: int) -> PipelineBlock:
    return block if graph is None else graph.put_into(block, held_bytes)
