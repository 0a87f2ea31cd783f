"""Read a job from TOML (``overlap-pipeline/1``); described in ``docs/commands.md``.

Files are not trusted: every key, type, unit and range is checked, and an error says what, where and what to write.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.toml_file import Bandwidth, Bytes, Count, Number, Positive, Table, Time, decode_toml, read_size
from overlap_sched.errors import CostError, PipelineError
from overlap_sched.pipeline.graphs import GraphBlock, GraphSource, JobGraphs, offer
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.layers import ModelStage, cut_model
from overlap_sched.problem import Problem
from overlap_sched.problem.file import DEFAULT_LIMITS, DamagedError, Limits, read_bytes

_ZERO = Bytes(0)


class _BlockTable(Table):
    time: Time | None = None
    problem: str = ""
    transient: Bytes = _ZERO
    output: Bytes = _ZERO
    send_buffer: Bytes | None = None


class _BackwardTable(_BlockTable):
    output_node: str = ""


class _RecomputeTable(Table):
    time: Time | None = None
    saved: Bytes | None = None


class _StageTable(Table):
    forward: _BlockTable
    backward: _BackwardTable | None = None
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


class ModelTable(Table):
    """Graphs of a model; see ``docs/pipelines.md``."""

    forward: str
    backward: str
    layers: Positive | Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] | None = None
    gradients: Number = 0.0
    optimizer: Number = 0.0
    recompute: bool = False


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
    model: ModelTable | None = None
    name: str = ""
    cluster: str = ""
    ranks_per_node: Positive = 1
    groups: dict[str, Count] = msgspec.field(default_factory=dict)
    memory_limit: Any = None
    pair: Number = 1.0
    link: _LinkTable | None = None
    links: tuple[_LinkBetweenTable, ...] = ()


MAX_ACTIONS = 1_000_000
"""Of a job: three per stage and micro-batch."""
_Source = Callable[[str], GraphSource]
AS_IT_IS: Mapping[str, int] = MappingProxyType({})
"""A job none of whose values are replaced."""
SHOWN = 16
"""Of more stages of a model, not all are named."""


def read_job(
    path: str | Path, graphs: JobGraphs, limits: Limits = DEFAULT_LIMITS, instead: Mapping[str, int] = AS_IT_IS
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
    return parse_job(read_text(path, limits), str(path), Path(path).parent, graphs, instead)


def read_text(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> str:
    """The text of a file; raises as :func:`read_job`."""
    try:
        return read_bytes(path, limits).decode("utf-8")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror}). Name a TOML file.") from None
    except (UnicodeDecodeError, DamagedError):
        raise PipelineError(f"{path}: is not text. A job is TOML in UTF-8.") from None


def parse_job(
    text: str, where: str, folder: Path, graphs: JobGraphs, instead: Mapping[str, int] = AS_IT_IS
) -> PipelineJob:
    """The job in a text; ``where``: how errors name it. Raises as :func:`read_job`."""
    file = decode_toml(text, _JobTable, where, PipelineError, instead)
    if file.stage and file.model is not None:
        raise PipelineError(f"{where}: there are [model] and [[stage]]. Leave one out.")

    def source(graph: str) -> GraphSource:
        return GraphSource(graph, folder / graph, file.cluster or None, tuple(file.groups.items()))

    tables = file.stage if file.model is None else _stages_of(file.model, where, source, graphs)
    count, batches, ranks = sum(one.repeat for one in tables), file.micro_batches, file.ranks
    if not count:
        raise PipelineError(f"{where}: stage is missing; write [[stage]] above each stage, or [model].")
    if 3 * count * batches > MAX_ACTIONS:
        actions = f"{3 * count * batches:,} actions, more than {MAX_ACTIONS:,}"
        raise PipelineError(f"{where}: {actions}. Plan fewer micro-batches: the steady state repeats.")
    if ranks > count:
        raise PipelineError(f"{where}: ranks is {ranks}, and there are {count} stages: give one per rank, or more.")
    beside = folder / file.cluster  # else it is a name
    try:
        cluster = read_cluster(str(beside) if beside.is_file() else file.cluster) if file.cluster else None
    except CostError as error:
        raise PipelineError(str(error)) from None
    link, links = _links(file, where, cluster)
    return PipelineJob(
        name=file.name or folder.name or "job",
        stages=_make_stages(tables, where, source, graphs),
        rank_of=tuple(stage % ranks for stage in range(count)),
        ranks=ranks,
        routes=(Route(tuple(range(count)), range(batches)),),
        link=link,
        links=links,
        memory_limit_bytes=_limits(file.memory_limit, where, ranks),
        pair_factor=file.pair,
    )


def _make_stages(
    tables: Sequence[_StageTable], where: str, source: _Source, graphs: JobGraphs
) -> tuple[PipelineStage, ...]:
    stages, received = list[PipelineStage](), 0
    for k, one in enumerate(tables):
        expected = received or (int(one.forward.output) if one.repeat > 1 else 0)
        stage = _StageReader(source, graphs, f"{where}: stage[{k}]", expected).stage(one)
        way = one.recompute if isinstance(one.recompute, _RecomputeTable) else _RecomputeTable()
        for _ in range(one.repeat):
            sends = _with_outputs(stage, received)
            stages.append(sends.recomputing(received, way.time, way.saved) if one.recompute else sends)
            received = stage.forward.output_bytes
    return tuple(stages)


def read_model_stages(model: ModelTable, where: str, source: _Source, graphs: JobGraphs) -> tuple[PipelineStage, ...]:
    """The stages of a model; raises as :func:`read_job`."""
    return _make_stages(_stages_of(model, where, source, graphs), where, source, graphs)


def _stages_of(model: ModelTable, where: str, source: _Source, graphs: JobGraphs) -> list[_StageTable]:
    """The stages of a model, and their graphs: those that are alike are one."""
    try:
        cut = cut_model(graphs.read(source(model.forward)), graphs.read(source(model.backward)), model.layers)
    except PipelineError as error:
        raise PipelineError(f"{where}: model: {error}") from None
    names = [stage.name for stage in cut.stages]
    shown = " | ".join(names if len(names) <= SHOWN else (*names[:2], "...", names[-1]))
    more = f"; stages need of each other, too{offer(cut.extra)}" if cut.extra else ""
    graphs.notes[f"{where}: {cut.layers} layers (by {cut.found_by}): {shown}{more}"] = None
    alike, tables = dict[object, ModelStage](), list[_StageTable]()
    for stage in cut.stages:
        ahead, back = (alike.setdefault(_contents(graph), stage) for graph in (stage.forward, stage.backward))
        parameters = sum(storage.bytes for storage in stage.forward.storages if storage.pinned)
        front, rear = f"{model.forward} ({ahead.name})", f"{model.backward} ({back.name})"
        graphs.parts |= {front: ahead.forward, rear: back.backward}
        tables.append(
            _StageTable(
                forward=_BlockTable(problem=front, output=Bytes(stage.output_bytes)),
                backward=_BackwardTable(problem=rear, output=Bytes(stage.gradient_bytes), output_node=back.gradient),
                parameters=Bytes(parameters),
                gradients=Bytes(parameters * model.gradients),
                optimizer=Bytes(parameters * model.optimizer),
                saved=Bytes(stage.saved_bytes),
                recompute=model.recompute,
            )
        )
    return tables


def _contents(graph: Problem) -> object:
    """Equal where two graphs do the same."""
    return tuple(node._replace(name="", module="") for node in graph.nodes), graph.storages


class _StageReader:
    """Makes a stage of its table: of blocks given by numbers or by graphs, and of bytes."""

    def __init__(self, source: _Source, graphs: JobGraphs, where: str, received_bytes: int) -> None:
        self._source, self._graphs, self._where, self._received_bytes = source, graphs, where, received_bytes

    def stage(self, table: _StageTable) -> PipelineStage:
        """Where only the halves of backward are given, the whole takes both, one after the other."""
        ahead, graph = self._given(table, "forward")
        saved, kept, half_i, half_w = _left(table.saved, ahead, graph), 0, None, None
        if table.input_gradient is not None or table.weight_gradient is not None:
            (half_i, graph_i), (half_w, graph_w) = (self._given(table, f"{of}_gradient") for of in ("input", "weight"))
            kept = _left(table.kept, half_i, graph_i)
            half_i, half_w = _measured(half_i, graph_i, saved), _measured(half_w, graph_w, kept)
        if half_i is not None and half_w is not None and table.backward is None:
            transient = max(half_i.transient_bytes, kept + half_w.transient_bytes - saved)
            time_us, exposed_us = half_i.time_us + half_w.time_us, half_i.exposed_us + half_w.exposed_us
            back = PipelineBlock(time_us, transient, half_i.output_bytes, half_i.sent_bytes, exposed_us=exposed_us)
        else:
            back = _measured(*self._given(table, "backward"), saved)
            if (parts := self._parted(table, halves=half_i is not None)) is not None:
                kept = _or(table.kept, parts[1].given_bytes)
                half_i, half_w = _measured(back, parts[0], saved), _measured(PipelineBlock(0.0), parts[1], kept)
                if back.sent_bytes is None and parts[0].left_bytes == parts[1].given_bytes:  # W reads it, too
                    half_i = replace(half_i, sent_bytes=0)
        if table.kept is not None and half_i is None:
            why = "goes from input_gradient to weight_gradient, and there are no halves. Leave it out."
            raise PipelineError(f"{self._where}.kept {why}")
        pinned = 0 if graph is None else graph.pinned_bytes
        static = _or(table.parameters, pinned) + table.gradients + table.optimizer
        reduce, step = (
            _measured(*self._given(table, of), 0) if getattr(table, of) else None for of in ("reduce", "step")
        )
        return PipelineStage(_measured(ahead, graph, saved), back, half_i, half_w, saved, kept, static, reduce, step)

    def _given(self, table: _StageTable, key: str) -> tuple[PipelineBlock, GraphBlock | None]:
        """A block as its numbers say, and its graph if it has one."""
        block: _BlockTable | None = getattr(table, key)
        if block is None or (block.time is None and not block.problem):
            missing = "is missing" if block is None else "has neither a time nor a graph (problem)"
            raise PipelineError(f'{self._where}.{key} {missing}: write {key} = {{ time = "12us" }}.')
        if block.problem and (block.time is not None or block.transient):
            raise PipelineError(f"{self._where}.{key} has a graph, which says its time and bytes: leave those out.")
        graph = self._graphs.whole(self._source(block.problem), table.parameters) if block.problem else None
        sent = None if block.send_buffer is None else int(block.send_buffer)
        return PipelineBlock(float(block.time or 0.0), int(block.transient), int(block.output), sent), graph

    def _parted(self, table: _StageTable, halves: bool) -> tuple[GraphBlock, GraphBlock] | None:
        """The halves of a backward's graph, where it is known which node makes what is sent back."""
        block, where = table.backward, f"{self._where}.backward.output_node"
        if block is None or not (block.problem or block.output_node) or (halves and not block.output_node):
            return None
        if halves:
            raise PipelineError(f"{where} makes halves of backward, which are given: leave one out.")
        if not block.problem:
            raise PipelineError(f"{where} names a node of a graph: give the graph, too (problem).")
        source, nbytes = self._source(block.problem), int(block.output) or self._received_bytes
        try:
            return self._graphs.halves(source, block.output_node, nbytes, table.parameters)
        except ValueError as error:
            raise PipelineError(f"{where} is {error}.") from None


def _or(given: Bytes | None, otherwise: int) -> int:
    return otherwise if given is None else int(given)


def _left(given: Bytes | None, block: PipelineBlock, graph: GraphBlock | None) -> int:
    """The bytes that a forward, or an input gradient, leaves for what comes later."""
    return _or(given, 0 if graph is None else max(graph.left_bytes - block.output_bytes, 0))


def _measured(block: PipelineBlock, graph: GraphBlock | None, held_bytes: int) -> PipelineBlock:
    return block if graph is None else graph.put_into(block, held_bytes)


def _with_outputs(stage: PipelineStage, received_bytes: int) -> PipelineStage:
    """A stage whose backward sends back as much as its forward has received, where the file does not say."""
    blocks = {name: getattr(stage, name) for name in ("backward", "input_gradient")}
    silent = {name: block for name, block in blocks.items() if block is not None and block.output_bytes == 0}
    return replace(stage, **{name: replace(block, output_bytes=received_bytes) for name, block in silent.items()})


def _limits(given: Any, where: str, ranks: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        sizes = tuple(int(read_size(one)) for one in (given if isinstance(given, list) else [given] * ranks))
    except ValueError as error:
        raise PipelineError(f"{where}: memory_limit: {error}.") from None
    if len(sizes) != ranks:
        raise PipelineError(f"{where}: memory_limit lists {len(sizes)} sizes: give one, or one per rank ({ranks}).")
    return sizes


def _links(
    file: _JobTable, where: str, cluster: Cluster | None
) -> tuple[PipelineLink, Mapping[tuple[int, int], PipelineLink]]:
    link, links, ranks = PipelineLink(), dict[tuple[int, int], PipelineLink](), file.ranks
    if cluster is not None:
        inside, node = PipelineLink(cluster.inside.latency_us, cluster.inside.bytes_per_s), file.ranks_per_node
        across = cluster.across
        link = PipelineLink(across.latency_us, across.card_bytes_per_s) if across else inside
        if node > cluster.ranks_per_node:
            raise PipelineError(f"{where}: ranks_per_node is {node}; {cluster.name} has {cluster.ranks_per_node}.")
        nodes = (range(first, min(first + node, ranks)) for first in range(0, ranks, node))
        links = {ends: inside for own in nodes for ends in permutations(own, 2)}
    if file.link is not None:
        link, links = PipelineLink(file.link.latency, file.link.bandwidth), {}
    for one in file.links:
        ends = one.source, one.target
        if max(ends) >= ranks or ends[0] == ends[1]:
            raise PipelineError(f"{where}: a link goes from rank {ends[0]} to {ends[1]}; ranks are 0 to {ranks - 1}.")
        links[ends] = PipelineLink(one.latency, one.bandwidth)
    return link, links
