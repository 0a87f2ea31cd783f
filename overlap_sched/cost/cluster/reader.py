"""A cluster from the tables of its file; the format is described in ``docs/prices.md``."""

from overlap_sched.cost.cluster.description import (
    FABRICS,
    GENERATIONS,
    LIBRARIES,
    Across,
    Cluster,
    DefaultContention,
    IntraNodeLink,
    MeshDimension,
)
from overlap_sched.cost.cluster.toml_table import TomlTable, shown
from overlap_sched.cost.device import Device, device_named
from overlap_sched.cost.measured.table import CollectiveTime, KernelTime, Tables
from overlap_sched.errors import OptionsError

FORMAT = "overlap-cluster/1"


def cluster_of(file: TomlTable) -> Cluster:
    """The cluster that a file describes."""
    found = file.text("format", FORMAT)
    if found != FORMAT:
        raise file.error("format", f"is {shown(found)}; this version reads {FORMAT!r}.")
    cluster = Cluster(
        name=file.text("name"),
        device=_device(file),
        ranks_per_node=file.whole("ranks_per_node"),
        inside=_inside(file.table("inside")),
        across=_across(file.table("across")) if "across" in file else None,
        library=file.choice("library", LIBRARIES, "nccl"),
        generation=file.choice("generation", GENERATIONS, ""),
        mesh=_mesh(file.table("mesh")) if "mesh" in file else (),
        beside=_beside(file.table("contention")) if "contention" in file else DefaultContention(),
        tables=_tables(file),
        source=file.text("source", ""),
    )
    file.done()
    return cluster


def _device(file: TomlTable) -> Device:
    """A name of the table of devices, or a device of the file's own."""
    if "device" in file and file.is_text("device"):
        try:
            return device_named(file.text("device"))
        except OptionsError as error:
            hint = str(error).removesuffix("Or make your own: cost.Device(...).")
            raise file.error("device", f"is unknown: {hint}Or write a [device] table of your own.") from None
    own = file.table("device")
    basis = Device("", 1.0, 1.0)
    device = Device(
        own.text("name"),
        own.quantity("flops", "rate"),
        own.quantity("bandwidth", "bandwidth"),
        own.number("flops_efficiency", basis.flops_efficiency),
        own.number("bandwidth_efficiency", basis.bytes_efficiency),
        own.quantity("kernel", "time", basis.kernel_us),
        own.size("memory", 0),
    )
    own.text("source", "")
    own.done()
    for key, value in (("flops", device.peak_flops_per_s), ("bandwidth", device.peak_bytes_per_s)):
        if not value > 0:
            raise own.error(key, "is 0; it is above 0.")
    for key, value in (
        ("flops_efficiency", device.flops_efficiency),
        ("bandwidth_efficiency", device.bytes_efficiency),
    ):
        if not 0 < value <= 1:
            raise own.error(key, f"is {value:g}; it is a part of the peak: above 0, at most 1.")
    return device


def _inside(own: TomlTable) -> IntraNodeLink:
    inside = IntraNodeLink(
        own.choice("fabric", FABRICS),
        own.quantity("bandwidth", "bandwidth"),
        own.quantity("latency", "time", 0.0),
        own.text("source", ""),
    )
    own.done()
    return inside


def _across(own: TomlTable) -> Across:
    across = Across(
        own.quantity("bandwidth", "bandwidth"),
        own.whole("cards_per_node"),
        own.quantity("latency", "time", 0.0),
        own.whole("rails", 1),
        own.number("oversubscription", 1.0),
        own.text("source", ""),
    )
    own.done()
    return across


def _mesh(own: TomlTable) -> tuple[MeshDimension, ...]:
    names, sizes = own.items("names"), own.items("sizes")
    own.done()
    if len(names) != len(sizes) or not all(isinstance(name, str) and name for name in names):
        raise own.error("names", f"are {shown(names)} and sizes {shown(sizes)}; a name and a size for each dimension.")
    for size in sizes:
        if type(size) is not int or size < 1:
            raise own.error("sizes", f"holds {shown(size)}; a size is a whole number, 1 or more.")
    return tuple(MeshDimension(name, size) for name, size in zip(names, sizes, strict=True))


def _beside(own: TomlTable) -> DefaultContention:
    slowdown, shares = (own.table(name) if name in own else None for name in ("slowdown", "shares"))
    beside = DefaultContention(
        {} if slowdown is None else {("" if kind == "any" else kind): slowdown.number(kind) for kind in slowdown.keys},
        own.flag("shared_links", True),
        own.text("source", ""),
        {} if shares is None else {kind: shares.number(kind) for kind in shares.keys},
    )
    own.done()
    return beside


def _tables(file: TomlTable) -> Tables:
    for gone in ("slowdown", "in_flight"):
        if gone in file:
            raise file.error(gone, f"is no longer read: delete each [[{gone}]]. Factors are in [contention.slowdown].")
    return Tables(
        tuple(time for own in file.tables("collective") for time in _collective_times(own)),
        tuple(_kernel_time(own) for own in file.tables("kernel")),
    )


def _collective_times(own: TomlTable) -> list[CollectiveTime]:
    kind, ranks, nodes = own.text("kind"), own.whole("ranks"), own.whole("nodes")
    columns = [own.numbers(key) for key in ("bytes", "us", "launch_us")]
    if "spread_us" in own:  # written before quartiles went
        own.numbers("spread_us")
    columns.append(own.numbers("finish_us") if "finish_us" in own else [0.0] * len(columns[0]))
    own.done()
    if not columns[0] or len({len(column) for column in columns}) != 1:
        lengths = ", ".join(str(len(column)) for column in columns[:3])
        raise own.error("bytes", f"us and launch_us have {lengths} values; each size has one of each.")
    if not 1 <= nodes <= ranks:
        raise own.error("nodes", f"is {nodes}, but the group has {ranks} ranks: it is 1 to {ranks}.")
    times = [CollectiveTime(kind, ranks, nodes, int(size), *rest) for size, *rest in zip(*columns, strict=True)]
    for time in times:
        if time.bytes < 1 or not time.time_us > 0:
            raise own.error("bytes", f"holds {time.bytes} bytes that take {time.time_us:g} us; both are above 0.")
    return times


def _kernel_time(own: TomlTable) -> KernelTime:
    time = KernelTime(
        own.text("op"),
        own.text("shapes"),
        own.whole("flops"),
        own.whole("bytes"),
        own.number("us"),
    )
    own.number("spread_us", 0.0)  # written before quartiles went
    own.done()
    if not time.time_us > 0:
        raise own.error("us", f"is {time.time_us:g}; it is above 0.")
    return time
