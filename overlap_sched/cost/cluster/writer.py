"""A cluster as the text of its file: the small part of TOML that it needs."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from overlap_sched.cost.cluster.description import Across, Cluster
from overlap_sched.cost.cluster.quantity import written
from overlap_sched.cost.cluster.reader import FORMAT
from overlap_sched.cost.measured.table import CollectiveTime, Tables


def cluster_text(cluster: Cluster) -> str:
    """A cluster as its file holds it. The same cluster gives the same text."""
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
            "spread_us": [one.spread_us for one in ones],
            "launch_us": [one.launch_us for one in ones],
            "finish_us": [one.finish_us for one in ones],
        }
        lines += _section("[[collective]]", {"kind": kind, "ranks": ranks, "nodes": nodes, **columns})
    for kernel in tables.kernels:
        pairs = kernel._asdict()
        lines += _section("[[kernel]]", {("us" if key == "time_us" else key): value for key, value in pairs.items()})
    for slowdown in tables.slowdowns:
        lines += _section("[[slowdown]]", slowdown._asdict())
    for together in tables.in_flight:
        lines += _section("[[in_flight]]", together._asdict())
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
