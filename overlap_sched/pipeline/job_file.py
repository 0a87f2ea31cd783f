"""Read a job from TOML (``overlap-pipeline/1``); described in ``docs/commands.md``.

Files are not trusted: every key, type, unit and range is checked, and an error says what, where and what to write.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.cost.cluster.file import read_cluster
from overlap_sched.cost.cluster.toml_table import TomlTable, parse_toml
from overlap_sched.errors import CostError, PipelineError
from overlap_sched.pipeline.check import MAX_ACTIONS, check_actions
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.pipeline.job import PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.recompute import Recomputation, recompute_of, with_recomputation
from overlap_sched.pipeline.stage_table import GraphReader, stage_of
from overlap_sched.pipeline.text_file import read_text
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits

FORMAT = "overlap-pipeline/1"


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
        PipelineError: It cannot be read, or a key is missing, unknown, or of another kind.
        PipelineError: What it says is no job.
        InputTooLargeError: It is larger than the limit.
        OverlapSchedError: Of a graph or cluster that it names.
    """
    text = read_text(path, limits, "a TOML file of a job", "A job is TOML in UTF-8")
    return parse_job(text, str(path), Path(path).parent, graphs, instead)


def parse_job(
    text: str, where: str, folder: Path, graphs: JobGraphs, instead: Mapping[str, int] = MappingProxyType({})
) -> PipelineJob:
    """The job in a text; ``where``: how errors name it. Raises as :func:`read_job`."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise PipelineError(f"{where}: is not TOML: {error}.") from None
    try:
        return _job(TomlTable({**data, **instead}, where, ""), folder, graphs)
    except (CostError, PipelineError) as error:
        raise PipelineError(str(error)) from None


def _job(table: TomlTable, folder: Path, graphs: JobGraphs) -> PipelineJob:
    table.choice("format", (FORMAT,))
    ranks, batches, name = table.whole("ranks"), table.whole("micro_batches"), table.text("name", folder.name or "job")
    named = table.text("cluster", "") or None
    groups = table.table("groups") if "groups" in table else TomlTable({}, "", "")
    sizes = tuple((name, groups.whole(name)) for name in groups.keys)

    read = GraphReader(graphs, lambda name: GraphSource(name, folder / name, named, sizes))
    stages, again = list[PipelineStage](), list[Recomputation | None]()
    for one in table.tables("stage"):
        repeat = one.whole("repeat", 1)
        count = len(stages) + repeat
        if 3 * count > MAX_ACTIONS:
            raise one.error("repeat", f"makes more than {MAX_ACTIONS // 3:,} stages.")
        check_actions(name, count, batches, count * batches)
        stages += [stage_of(one, read)] * repeat
        again += [recompute_of(one)] * repeat
        one.done()
    if not stages:
        raise table.error("stage", "is missing; write [[stage]] above each stage.")
    if not 1 <= ranks <= len(stages):
        raise table.error("ranks", f"is {ranks}, and there are {len(stages)} stages: give one per rank, or more.")
    link, links = _links(table, ranks, None if named is None else read_cluster(_near(folder, named)))
    job = PipelineJob(
        name=name,
        stages=with_recomputation(_with_outputs(stages), again),
        rank_of=tuple(stage % ranks for stage in range(len(stages))),
        ranks=ranks,
        routes=(Route(tuple(range(len(stages))), range(batches)),),
        link=link,
        links=links,
        memory_limit_bytes=_limits(table, ranks),
        pair_factor=table.number("pair", 1.0),
    )
    table.done()
    return job


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


def _limits(table: TomlTable, ranks: int) -> tuple[int, ...] | None:
    if "memory_limit" not in table:
        return None
    if not table.is_list("memory_limit"):
        return (table.size("memory_limit"),) * ranks
    listed = table.listed("memory_limit")
    found = tuple(listed.size(key) for key in listed.keys)
    if len(found) != ranks:
        raise table.error("memory_limit", f"lists {len(found)} sizes for {ranks} ranks: give one, or one per rank.")
    return found


def _links(
    table: TomlTable, ranks: int, cluster: Cluster | None
) -> tuple[PipelineLink, Mapping[tuple[int, int], PipelineLink]]:
    link, links = PipelineLink(), dict[tuple[int, int], PipelineLink]()
    if cluster is not None:
        inside = PipelineLink(cluster.inside.latency_us, cluster.inside.bytes_per_s)
        across = cluster.across
        link = inside if across is None else PipelineLink(across.latency_us, across.card_bytes_per_s)
        node = table.whole("ranks_per_node", 1)
        if not 1 <= node <= cluster.ranks_per_node:
            raise table.error("ranks_per_node", f"is {node}; a node of {cluster.name} has {cluster.ranks_per_node}.")
        near = [(a, b) for a in range(ranks) for b in range(a - a % node, min(a - a % node + node, ranks)) if a != b]
        links = dict.fromkeys(near, inside)
    if "link" in table:
        link, links = _link(table.table("link")), {}
    for one in table.tables("links"):
        ends = one.whole("from"), one.whole("to")
        if not (ends[0] < ranks and ends[1] < ranks and ends[0] != ends[1]):
            raise one.error("to", f"makes a link from rank {ends[0]} to rank {ends[1]}; ranks are 0 to {ranks - 1}.")
        links[ends] = _link(one)
    return link, links


def _link(table: TomlTable) -> PipelineLink:
    link = PipelineLink(table.quantity("latency", "time", 0.0), table.quantity("bandwidth", "bandwidth"))
    table.done()
    return link
