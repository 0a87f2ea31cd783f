"""Read and write cluster files: TOML, by hand or by ``calibrate``. The format is described in ``docs/prices.md``.

Files are not trusted: every key, type, unit and range is checked, and an error says what, where and what to write.
"""

import tomllib
from importlib import resources
from pathlib import Path

from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.cost.cluster.reader import cluster_of
from overlap_sched.cost.cluster.toml_table import TomlTable
from overlap_sched.cost.cluster.writer import cluster_text
from overlap_sched.errors import ClusterError, ClusterFileError
from overlap_sched.problem.paths import nameable

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
        ClusterFileError: There is no such file or name, it cannot be read, or it is not TOML.
        ClusterError: Its content: an unknown key, a number without its unit, a value out of its range.
    """
    text = str(file_or_name)
    if text in shipped_clusters():
        return parse_cluster((_SHIPPED / f"{text}.toml").read_text(encoding="utf-8"), f"{text} (shipped)")
    path = Path(file_or_name)
    try:
        if nameable(path).stat().st_size > _MOST_BYTES:
            raise ClusterFileError(f"{path}: is larger than {_MOST_BYTES // 2**20} MiB; no cluster file is.")
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterFileError(
            f"{text}: is neither a file that can be read ({error.strerror}) nor the name of a cluster that is shipped: "
            f"{', '.join(shipped_clusters())}."
        ) from None
    except UnicodeDecodeError:
        raise ClusterFileError(f"{path}: is not text. A cluster file is TOML in UTF-8.") from None
    return parse_cluster(content, str(path))


def cluster_given(cluster: Cluster | str | Path) -> Cluster:
    """A cluster itself, or the one of a file or name; raises as :func:`read_cluster` does."""
    return cluster if isinstance(cluster, Cluster) else read_cluster(cluster)


def parse_cluster(text: str, where: str) -> Cluster:
    """The cluster in a text; ``where``: how errors name it. Raises as :func:`read_cluster` does."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ClusterFileError(f"{where}: is not TOML: {error}.") from None
    try:
        return cluster_of(TomlTable(data, where, ""))
    except ClusterError as error:
        message = str(error)
        raise ClusterError(message if message.startswith(f"{where}: ") else f"{where}: {message}") from None


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster file; :func:`read_cluster` gives the same cluster again.

    Raises:
        OSError: It cannot be written.
    """
    Path(nameable(path)).write_text(cluster_text(cluster), encoding="utf-8")
