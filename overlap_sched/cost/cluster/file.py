"""Read and write cluster files: TOML, by hand or by ``calibrate``. The format is described in ``docs/prices.md``.

Files are not trusted: every key, type, unit and range is checked, and an error says what, where and what to write.
"""

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from overlap_sched.cost.cluster.description import Across, Cluster
from overlap_sched.cost.cluster.reader import FORMAT, cluster_of
from overlap_sched.cost.cluster.toml_table import TomlTable, parse_toml, written
from overlap_sched.cost.measured.table import CollectiveTime, Tables
from overlap_sched.errors import CostError
from overlap_sched.problem.file import nameable

ASSUMED = {"H100": "dgx-h100", "H200": "dgx-h200", "A100": "dgx-a100"}
"""By device, the shipped cluster that a dump is taken to run on where nothing says otherwise."""

_SHIPPED = resources.files("overlap_sched.cost.cluster") / "shipped"
_MOST_BYTES = 64 * 2**20


def shipped_clusters() -> tuple[str, ...]:
    """Names of the clusters that come with the package, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _SHIPPED.iterdir() if file.name.endswith(".toml")))


def read_cluster(file_or_name: str | Path) -> Cluster:
    """A cluster by its file, or by the name of one that is shipped (``"dgx-h100"``).

    Raises:
        CostError: There is no such file or name, it cannot be read, or it is not TOML.
        CostError: Its content: an unknown key, a number without its unit, a value out of its range.
    """
    text = str(file_or_name)
    if text in shipped_clusters():
        return parse_cluster((_SHIPPED / f"{text}.toml").read_text(encoding="utf-8"), f"{text} (shipped)")
    path = Path(file_or_name)
    try:
        if nameable(path).stat().st_size > _MOST_BYTES:
            raise CostError(f"{path}: is larger than {_MOST_BYTES // 2**20} MiB; no cluster file is.")
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CostError(
            f"{text}: is neither a file that can be read ({error.strerror}) nor the name of a cluster that is shipped: "
            f"{', '.join(shipped_clusters())}."
        ) from None
    except UnicodeDecodeError:
        raise CostError(f"{path}: is not text. A cluster file is TOML in UTF-8.") from None
    return parse_cluster(content, str(path))


def cluster_given(cluster: Cluster | str | Path) -> Cluster:
    """A cluster itself, or the one of a file or name; raises as :func:`read_cluster` does."""
    return cluster if isinstance(cluster, Cluster) else read_cluster(cluster)


def parse_cluster(text: str, where: str) -> Cluster:
    """The cluster in a text; ``where``: how errors name it. Raises as :func:`read_cluster` does."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise CostError(f"{where}: is not TOML: {error}.") from None
    try:
        return cluster_of(TomlTable(data, where, ""))
    except CostError as error:
        message = str(error)
        raise CostError(message if message.startswith(f"{where}: ") else f"{where}: {message}") from None


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster file; :func:`read_cluster` gives the same cluster again."""
    Path(nameable(path)).write_text(cluster_text(cluster), encoding="utf-8")


def cluster_text(cluster: Cluster) -> str:
    """A cluster as its file holds it, in the small part of TOML that it needs. The same cluster gives the same text."""
    device, inside, across, beside = cluster.device, cluster.inside, cluster.across, cluster.beside
    head = {
        "format": FORMAT,
        "name": cluster.name,
        "source": cluster.source,
        "ranks_per_node": cluster.ranks_per_node,
        "library": cluster.library,
        "generation": cluster.generation,
    }
    lines = _pairs({key: value for key, value in head.items() if value != ""})
    lines += _section(
        "[device]",
        {
            "name": device.name,
            "flops": written(device.peak_flops_per_s, "rate"),
            "bandwidth": written(device.peak_bytes_per_s, "bandwidth"),
            "flops_efficiency": device.flops_efficiency,
            "bandwidth_efficiency": device.bytes_efficiency,
            "kernel": written(device.kernel_us, "time"),
            **({"memory": f"{device.memory_bytes}B"} if device.memory_bytes else {}),
        },
    )
    bandwidth, latency = written(inside.bytes_per_s, "bandwidth"), written(inside.latency_us, "time")
    link = {"fabric": inside.fabric, "bandwidth": bandwidth, "latency": latency, "source": inside.source}
    lines += _section("[inside]", link)
    if across is not None:
        lines += _section("[across]", _across_pairs(across))
    if cluster.mesh:
        names, sizes = [one.name for one in cluster.mesh], [one.size for one in cluster.mesh]
        lines += _section("[mesh]", {"names": names, "sizes": sizes})
    lines += _section("[contention]", {"shared_links": beside.shared_links, "source": beside.source})
    if beside.slowdown:
        lines += _section("[contention.slowdown]", {kind or "any": factor for kind, factor in beside.slowdown.items()})
    if beside.shares:
        lines += _section("[contention.shares]", dict(beside.shares))
    return "\n".join([*lines, *_table_lines(cluster.tables)]) + "\n"


def _across_pairs(across: Across) -> dict[str, Any]:
    return {
        "bandwidth": written(across.card_bytes_per_s, "bandwidth"),
        "cards_per_node": across.cards_per_node,
        "latency": written(across.latency_us, "time"),
        "rails": across.rails,
        "oversubscription": across.oversubscription,
        "source": across.source,
    }


def _table_lines(tables: Tables) -> list[str]:
    lines: list[str] = []
    grouped: dict[tuple[str, int, int], list[CollectiveTime]] = {}
    for one in tables.collectives:
        grouped.setdefault(one[:3], []).append(one)
    for (kind, ranks, nodes), ones in grouped.items():
        columns = {
            "bytes": [one.bytes for one in ones],
            "us": [one.time_us for one in ones],
            "launch_us": [one.launch_us for one in ones],
            "finish_us": [one.finish_us for one in ones],
        }
        lines += _section("[[collective]]", {"kind": kind, "ranks": ranks, "nodes": nodes, **columns})
    for kernel in tables.kernels:
        pairs = kernel._asdict()
        lines += _section("[[kernel]]", {("us" if key == "time_us" else key): value for key, value in pairs.items()})
    return lines


def _section(title: str, pairs: Mapping[str, Any]) -> list[str]:
    return ["", title, *_pairs(pairs)]


def _pairs(pairs: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_toml(value)}" for key, value in pairs.items()]


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _toml(key)


def _toml(value: Any) -> str:
    """A value in TOML; texts as in JSON, whose escapes TOML shares."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Iterable):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
