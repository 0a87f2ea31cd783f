"""Read a job from TOML (``overlap-pipeline/1``); described in ``docs/commands.md``.

Files are not trusted: every key, type, unit and range is checked, and an error says what, where and what to write.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.toml_file import Bandwidth, Bytes, Count, Number, Positive, Table, Time, decode_toml, read_size
from overlap_sched.errors import CostError, PipelineError
from overlap_sched.pipeline.graphs import GraphBlock, GraphSource, JobGraphs, left_by
from overlap_sched.pipeline.job import (
    MAX_ACTIONS,
    PipelineBlock,
    PipelineJob,
    PipelineLink,
    PipelineStage,
    Recomputation,
    Route,
    check_actions,
    with_recomputation,
)
from overlap_sched.problem.file import DEFAULT_LIMITS, DamagedError, Limits, read_bytes

_ZERO = Bytes(0)


class _BlockTable(Table):
    time: Time | None = None
    problem: str = ""
    transient: Bytes = _ZERO
    output: Bytes = _ZERO
    send_buffer: Bytes | None = None
    output_node: str = ""


class _RecomputeTable(Table):
    time: Time | None = None
    saved: Bytes | None = None


class _StageTable(Table):
    forward: _BlockTable
    backward: _BlockTable | None = None
    input_gradient: _BlockTable | None = None
    weight_gradient: _BlockTable | None = None
    reduce: _BlockTable | None = None
    step: _BlockTable | None = None
    repeat: Positive = 1
    parameters: Bytes | None = None
    gradients: Bytes = _ZERO
    optimizer: Bytes = _ZERO
    saved: Bytes | None = None
    kept: Bytes | None = None
    recompute: bool | _RecomputeTable = False


class _LinkTable(Table):
    bandwidth: Bandwidth
    latency: Time = Time(0.0)


class _LinkBetweenTable(_LinkTable, rename={"source": "from", "target": "to"}, kw_only=True):
    source: Count
    target: Count


class _JobTable(Table):
    format: Literal["overlap-pipeline/1"]
    ranks: Positive
    micro_batches: Positive
    stage: tuple[_StageTable, ...] = ()
    name: str = ""
    cluster: str = ""
    ranks_per_node: Positive = 1
    groups: dict[str, Count] = msgspec.field(default_factory=dict)
    memory_limit: Any = None
    pair: Number = 1.0
    link: _LinkTable | None = None
    links: tuple[_LinkBetweenTable, ...] = ()


def read_job(
    path: str | Path,
    graphs: JobGraphs,
    limits: Limits = DEFAULT_LIMITS,
    instead: Mapping[str, int] = MappingProxyType({}),
) -> PipelineJob:
    """A job, its stages dealt out to the ranks in turn.

    Args:
        path: The file.
        graphs: Reads the graphs that it names, by paths from its folder.
        limits: How large it may be.
        instead: Values that take the place of those of the file, by key.

    Raises:
        PipelineError: It cannot be read, a key is missing, unknown, or of another kind, or what it says is no job.
        InputTooLargeError: It is larger than the limit.
        OverlapSchedError: Of a graph or cluster that it names.
    """
    text = read_text(path, limits, "a TOML file of a job", "A job is TOML in UTF-8")
    return parse_job(text, str(path), Path(path).parent, graphs, instead)


def read_text(path: str | Path, limits: Limits, wanted: str, form: str) -> str:
    """Read a file in UTF-8, packed or not.

    Args:
        path: The file.
        limits: How large it may be.
        wanted: What is to be named, for errors: ``"a TOML file of a job"``.
        form: What it is made of: ``"A job is TOML in UTF-8"``.

    Raises:
        PipelineError: It cannot be read, or is not text.
        InputTooLargeError: It is larger than the limit.
    """
    try:
        return read_bytes(path, limits).decode("utf-8")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror}). Name {wanted}.") from None
    except (UnicodeDecodeError, DamagedError):
        raise PipelineError(f"{path}: is not text. {form}.") from None


def parse_job(
    text: str, where: str, folder: Path, graphs: JobGraphs, instead: Mapping[str, int] = MappingProxyType({})
) -> PipelineJob:
    """The job in a text; ``where``: how errors name it. Raises as :func:`read_job`."""
    file = decode_toml(text, _JobTable, where, PipelineError, instead)
    name, batches, ranks = file.name or folder.name or "job", file.micro_batches, file.ranks
    source = file.cluster or None, tuple(file.groups.items())
    count = sum(one.repeat for one in file.stage)
    if 3 * count > MAX_ACTIONS:
        raise PipelineError(f"{where}: stage: repeat makes more than {MAX_ACTIONS // 3:,} stages.")
    check_actions(name, count, batches, count * batches)
    if not count:
        raise PipelineError(f"{where}: stage is missing; write [[stage]] above each stage.")
    if ranks > count:
        raise PipelineError(f"{where}: ranks is {ranks}, and there are {count} stages: give one per rank, or more.")
    stages, again = list[PipelineStage](), list[Recomputation | None]()
    for k, one in enumerate(file.stage):
        read = _StageReader(graphs, lambda graph: GraphSource(graph, folder / graph, *source), f"{where}: stage[{k}]")
        stages += [read.stage(one)] * one.repeat
        way = one.recompute
        given = Recomputation(way.time, way.saved) if isinstance(way, _RecomputeTable) else Recomputation()
        again += [given if way else None] * one.repeat
    try:
        cluster = read_cluster(_near(folder, file.cluster)) if file.cluster else None
    except CostError as error:
        raise PipelineError(str(error)) from None
    link, links = _links(file, where, cluster)
    return PipelineJob(
        name=name,
        stages=with_recomputation(_with_outputs(stages), again),
        rank_of=tuple(stage % ranks for stage in range(count)),
        ranks=ranks,
        routes=(Route(tuple(range(count)), range(batches)),),
        link=link,
        links=links,
        memory_limit_bytes=_limits(file.memory_limit, where, ranks),
        pair_factor=file.pair,
    )


class _StageReader:
    """Makes a stage of its table: of blocks given by numbers or by graphs, and of bytes."""

    def __init__(self, graphs: JobGraphs, source: Callable[[str], GraphSource], where: str) -> None:
        self._graphs, self._source, self._where = graphs, source, where

    def stage(self, table: _StageTable) -> PipelineStage:
        """Where only the halves of backward are given, the whole takes both, one after the other."""
        self._parameters = None if table.parameters is None else int(table.parameters)
        graph, ahead = self._given(table, "forward")
        pinned = 0 if graph is None else graph.pinned_bytes
        saved = _or(table.saved, 0 if graph is None else left_by(graph, ahead.output_bytes))
        static = _or(table.parameters, pinned) + table.gradients + table.optimizer
        halves = table.input_gradient is not None or table.weight_gradient is not None
        kept, half_i, half_w = _or(table.kept, 0), None, None
        if halves:
            graph_i, half_i = self._given(table, "input_gradient")
            if graph_i is not None:
                kept = _or(table.kept, left_by(graph_i, half_i.output_bytes))
            graph_w, half_w = self._given(table, "weight_gradient")
            half_i, half_w = _measured(graph_i, half_i, saved), _measured(graph_w, half_w, kept)
        if half_i is not None and half_w is not None and table.backward is None:
            back = _both(half_i, half_w, saved, kept)
        else:
            back = _measured(*self._given(table, "backward"), saved)
            parts = self._parted(table.backward)
            if halves and parts is not None:
                raise PipelineError(
                    f"{self._where}.backward.output_node makes halves of backward, which are given: leave one out."
                )
            if parts is not None:
                kept = _or(table.kept, left_by(parts[0], back.output_bytes))
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
            reduce=_measured(*self._given(table, "reduce"), 0) if table.reduce is not None else None,
            step=_measured(*self._given(table, "step"), 0) if table.step is not None else None,
        )

    def _given(self, table: _StageTable, key: str) -> tuple[GraphBlock | None, PipelineBlock]:
        """The graph of a block if it has one, and the block as its numbers say."""
        block: _BlockTable | None = getattr(table, key)
        if block is None or (block.time is None and not block.problem):
            missing = "is missing" if block is None else "has neither a time nor a graph (problem)"
            raise PipelineError(f'{self._where}.{key} {missing}: write {key} = {{ time = "12us" }}.')
        if block.output_node and key != "backward":
            raise PipelineError(f"{self._where}.{key} has output_node, which only backward has. Leave it out.")
        sent = None if block.send_buffer is None else int(block.send_buffer)
        if block.problem:
            if block.time is not None or block.transient:
                raise PipelineError(f"{self._where}.{key} has a graph, which says its time and bytes: leave those out.")
            graph = self._graphs.whole(self._source(block.problem), self._parameters)
            return graph, PipelineBlock(0.0, 0, int(block.output), sent)
        return None, PipelineBlock(float(block.time or 0.0), int(block.transient), int(block.output), sent)

    def _parted(self, block: _BlockTable | None) -> tuple[GraphBlock, GraphBlock] | None:
        """The halves of a backward's graph, where the table says which node makes what is sent back."""
        if block is None or not block.output_node:
            return None
        where = f"{self._where}.backward.output_node"
        if not block.problem:
            raise PipelineError(f"{where} names a node of a graph: give the graph, too (problem).")
        found = self._graphs.halves(self._source(block.problem), block.output_node, self._parameters)
        if found is None:
            raise PipelineError(
                f"{where} is {block.output_node!r:.40}, but the graph has no such node, or nothing besides: name the "
                "one that makes the gradient to be sent."
            )
        return found


def _or(given: Bytes | None, otherwise: int) -> int:
    return otherwise if given is None else int(given)


def _both(one: PipelineBlock, other: PipelineBlock, saved: int, kept: int) -> PipelineBlock:
    """I and W in one action: what is saved counts to its end, what is kept beyond that is transient."""
    transient = max(one.transient_bytes, kept + other.transient_bytes - saved)
    time_us, exposed_us = one.time_us + other.time_us, one.exposed_us + other.exposed_us
    return PipelineBlock(time_us, transient, one.output_bytes, one.sent_bytes, exposed_us=exposed_us)


def _measured(graph: GraphBlock | None, block: PipelineBlock, held_bytes: int) -> PipelineBlock:
    return block if graph is None else graph.put_into(block, held_bytes)


def _near(folder: Path, named: str) -> str:
    """A cluster's file beside the job; else its name."""
    beside = folder / named
    return str(beside) if beside.is_file() else named


def _with_outputs(stages: list[PipelineStage]) -> tuple[PipelineStage, ...]:
    """Stages whose backward sends back as much as their forward has received, where the file does not say."""
    found = stages[:1]
    for before, stage in pairwise(stages):
        received = before.forward.output_bytes
        blocks = {name: getattr(stage, name) for name in ("backward", "input_gradient")}
        known = {name: block for name, block in blocks.items() if block is not None and block.output_bytes == 0}
        found.append(replace(stage, **{name: replace(block, output_bytes=received) for name, block in known.items()}))
    return tuple(found)


def _limits(given: Any, where: str, ranks: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        sizes = tuple(int(read_size(one)) for one in (given if isinstance(given, list) else [given] * ranks))
    except ValueError as error:
        raise PipelineError(f"{where}: memory_limit: {error}.") from None
    if len(sizes) != ranks:
        raise PipelineError(
            f"{where}: memory_limit lists {len(sizes)} sizes for {ranks} ranks: give one, or one per rank."
        )
    return sizes


def _links(
    file: _JobTable, where: str, cluster: Cluster | None
) -> tuple[PipelineLink, Mapping[tuple[int, int], PipelineLink]]:
    link, links, ranks = PipelineLink(), dict[tuple[int, int], PipelineLink](), file.ranks
    if cluster is not None:
        inside = PipelineLink(float(cluster.inside.latency_us), float(cluster.inside.bytes_per_s))
        across = cluster.across
        link = PipelineLink(float(across.latency_us), float(across.card_bytes_per_s)) if across else inside
        node = file.ranks_per_node
        if node > cluster.ranks_per_node:
            raise PipelineError(
                f"{where}: ranks_per_node is {node}; a node of {cluster.name} has {cluster.ranks_per_node}."
            )
        near = [(a, b) for a in range(ranks) for b in range(a - a % node, min(a - a % node + node, ranks)) if a != b]
        links = dict.fromkeys(near, inside)
    if file.link is not None:
        link, links = PipelineLink(float(file.link.latency), float(file.link.bandwidth)), {}
    for one in file.links:
        ends = one.source, one.target
        if max(ends) >= ranks or ends[0] == ends[1]:
            raise PipelineError(
                f"{where}: a link goes from rank {ends[0]} to rank {ends[1]}; ranks are 0 to {ranks - 1}."
            )
        links[ends] = PipelineLink(float(one.latency), float(one.bandwidth))
    return link, links
