"""What a step of a program can be: its source, what it reads, writes, launches and awaits.

Values have one of few shapes, so that most steps can follow any other: ``f`` is a matrix (N, N), ``h`` its upper half
(N/2, N), ``r`` has a number of rows that only the data knows, ``s`` is a vector (N,), ``i`` a whole number in a tensor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

N = 16
SHAPES = {"f": (N, N), "h": (N // 2, N), "s": (N,), "i": ()}

Capture = Literal["make_fx", "dynamo"]


@dataclass(frozen=True)
class Kind:
    """One kind of step.

    Attributes:
        name: Of the kind.
        family: What it is counted as in summaries.
        takes: A letter per argument: its shape.
        makes: A letter per result.
        text: Source, one statement a line. ``{a} {b} {c}``: the arguments; ``{x} {y}``: the results; ``{g}``: the name
            of a process group; ``{k}``: a small number; ``{t}``: a name of the step's own.
        writes: Arguments that it writes.
        views: The argument at which its result looks.
        sends: Arguments that are in flight after it, until all of its results have been awaited.
        receives: Arguments that arrive in flight; ``launches``: so do its results.
        again: Each wait for one of its results writes all of them: so gloo does it.
        waits: Its argument has arrived after it.
        weight: How often.
        ways: By which ways programs with it are captured.
        grad: Whether it can stand in a program that is differentiated.
    """

    name: str
    family: str
    takes: str
    makes: str
    text: str
    writes: tuple[int, ...] = ()
    views: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    launches: bool = False
    again: bool = False
    waits: bool = False
    weight: float = 1.0
    ways: tuple[Capture, ...] = ("make_fx", "dynamo")
    grad: bool = False


_C10D = "torch.ops._c10d_functional"
_OWN = "torch.ops.progs"
_MAKE_FX: tuple[Capture, ...] = ("make_fx",)
_DYNAMO: tuple[Capture, ...] = ("dynamo",)


def _compute() -> Iterable[Kind]:
    yield Kind("mm", "compute", "ff", "f", "{x} = torch.mm({a}, {b}) * 0.1", weight=4, grad=True)
    yield Kind("mms", "compute", "f", "f", "{x} = torch.mm(torch.mm({a}, {a}), {a}) * 0.01", weight=3, grad=True)
    yield Kind("add", "compute", "ff", "f", "{x} = {a} + 0.5 * {b}", weight=2, grad=True)
    yield Kind("relu", "compute", "f", "f", "{x} = torch.relu({a})", grad=True)
    yield Kind("turn", "compute", "f", "f", "{x} = {a}.t().contiguous() * 0.5", grad=True)
    yield Kind("cat", "compute", "hh", "f", "{x} = torch.cat([{a}, {b}])", grad=True)
    yield Kind("scale", "compute", "h", "h", "{x} = {a} * 0.5 + 0.1", grad=True)
    yield Kind("outer", "compute", "ss", "f", "{x} = torch.outer({a}, {b}) * 0.1", weight=0.5)
    yield Kind("sub", "compute", "fs", "f", "{x} = {a} - {b}", weight=0.7, grad=True)


def _views() -> Iterable[Kind]:
    yield Kind("upper", "view", "f", "h", "{x} = {a}[: N // 2]", views=0, weight=1.5, grad=True)
    yield Kind("lower", "view", "f", "h", "{x} = {a}[N // 2 :]", views=0, weight=1.5, grad=True)
    yield Kind("flat", "view", "f", "f", "{x} = {a}.view(-1).view(N, N)", views=0, weight=1, grad=True)
    yield Kind("t", "view", "f", "f", "{x} = {a}.t()", views=0, weight=0.5, grad=True)


def _in_place() -> Iterable[Kind]:
    yield Kind("add_", "in place", "ff", "", "{a}.add_({b}, alpha=0.25)", writes=(0,), weight=1.5)
    yield Kind("mul_", "in place", "f", "", "{a}.mul_(0.5)", writes=(0,))
    yield Kind("half_", "in place", "h", "", "{a}.add_(0.125)", writes=(0,), weight=1.5)
    yield Kind("copy_", "in place", "ff", "", "{a}.copy_({b})", writes=(0,), weight=1.5)
    yield Kind("row_", "in place", "fs", "", "{a}[{k}].copy_({b})", writes=(0,))
    yield Kind("diagonal_", "in place", "f", "", "{a}.view(-1)[:: N + 1].mul_(0.5)", writes=(0,))
    yield Kind("index_put", "in place", "ff", "", "{a}[torch.arange(0, N, 2)] = {b}[: N // 2]", writes=(0,), weight=0.5)
    yield Kind("stat_", "in place", "sf", "", "{a}.add_({b}[0], alpha=0.5)", writes=(0,), weight=0.5)
    yield Kind("mm_out", "in place", "fff", "", "torch.mm({b}, {c}, out={a})", writes=(0,), weight=0.5, ways=_MAKE_FX)


def _collectives() -> Iterable[Kind]:
    sent = {"sends": (0,), "launches": True}
    yield Kind(
        "all_gather",
        "collective",
        "h",
        "f",
        "{x} = " + _C10D + ".all_gather_into_tensor.default({a}, 2, {g})",
        weight=4,
        grad=True,
        **sent,
    )
    yield Kind(
        "reduce_scatter",
        "collective",
        "f",
        "h",
        "{x} = " + _C10D + ".reduce_scatter_tensor.default({a}, 'sum', 2, {g})",
        weight=3,
        grad=True,
        **sent,
    )
    yield Kind(
        "all_reduce",
        "collective",
        "f",
        "f",
        "{x} = " + _C10D + ".all_reduce.default({a}, 'sum', {g})",
        weight=3,
        **sent,
    )
    yield Kind(
        "all_to_all",
        "collective",
        "f",
        "f",
        "{x} = " + _C10D + ".all_to_all_single.default({a}, [N // 2, N // 2], [N // 2, N // 2], {g})",
        weight=2,
        grad=True,
        **sent,
    )
    yield Kind("broadcast", "collective", "f", "f", "{x} = " + _C10D + ".broadcast.default({a}, 0, {g})", **sent)
    coalesced = {"sends": (0, 1), "launches": True}
    yield Kind(
        "gathers",
        "coalesced",
        "hh",
        "ff",
        "{x}, {y} = " + _C10D + ".all_gather_into_tensor_coalesced.default([{a}, {b}], 2, {g})",
        **coalesced,
    )
    yield Kind(
        "scatters",
        "coalesced",
        "ff",
        "hh",
        "{x}, {y} = " + _C10D + ".reduce_scatter_tensor_coalesced.default([{a}, {b}], 'sum', 2, {g})",
        again=True,
        **coalesced,
    )
    yield Kind(
        "reduces",
        "coalesced",
        "ff",
        "ff",
        "{x}, {y} = " + _C10D + ".all_reduce_coalesced.default([{a}, {b}], 'sum', {g})",
        **coalesced,
    )
    yield Kind(
        "gather_out",
        "collective in place",
        "hf",
        "",
        _C10D + ".all_gather_into_tensor_out.default({a}, 2, {g}, out={b})",
        writes=(1,),
        sends=(0,),
        receives=(1,),
        ways=_MAKE_FX,
    )
    yield Kind(
        "scatter_out",
        "collective in place",
        "fh",
        "",
        _C10D + ".reduce_scatter_tensor_out.default({a}, 'sum', 2, {g}, out={b})",
        writes=(1,),
        sends=(0,),
        receives=(1,),
        weight=0.7,
        ways=_MAKE_FX,
    )
    yield Kind(
        "all_reduce_",
        "collective in place",
        "f",
        "",
        _C10D + ".all_reduce_.default({a}, 'sum', {g})",
        writes=(0,),
        receives=(0,),
        ways=_MAKE_FX,
    )
    yield Kind(
        "broadcast_",
        "collective in place",
        "f",
        "",
        _C10D + ".broadcast_.default({a}, 0, {g})",
        writes=(0,),
        receives=(0,),
        weight=0.5,
        ways=_MAKE_FX,
    )
    yield Kind(
        "shard_dim",
        "blocking collective",
        "f",
        "f",
        "{x} = torch.ops._dtensor.shard_dim_alltoall.default({a}, 0, 1, {g}).reshape(N, N).clone()",
        weight=1.5,
    )


def _waits() -> Iterable[Kind]:
    for letter, weight in (("f", 9), ("h", 6)):
        text = "{x} = " + _C10D + ".wait_tensor.default({a})"
        yield Kind(f"wait_{letter}", "wait", letter, letter, text, views=0, waits=True, weight=weight, grad=True)


def _custom() -> Iterable[Kind]:
    yield Kind("plain", "custom operator", "f", "f", "{x} = " + _OWN + ".plain({a})")
    yield Kind("plain_into", "custom operator", "ff", "", _OWN + ".plain_into({a}, {b})", writes=(0,))
    yield Kind("hidden", "hidden communication", "f", "f", "{x} = " + _OWN + ".hidden({a}, {g})", weight=1.5)
    yield Kind("hidden_mute", "hidden communication", "f", "f", "{x} = " + _OWN + ".hidden_mute({a})", weight=0.7)
    yield Kind("hidden_into", "hidden communication", "ff", "", _OWN + ".hidden_into({a}, {b}, {g})", writes=(0,))
    yield Kind("noted", "effect", "f", "f", "{x} = " + _OWN + ".noted({a}, {k})", weight=1.5)


def _random() -> Iterable[Kind]:
    yield Kind("noise", "random", "f", "f", "{x} = {a} + torch.rand_like({a}) * 0.1", weight=1.5)
    yield Kind("dropout", "random", "f", "f", "{x} = torch.nn.functional.dropout({a}, 0.3, True)")
    yield Kind("normal_", "random", "f", "", "{a}.normal_()", writes=(0,), weight=0.5)


def _statistics() -> Iterable[Kind]:
    yield Kind(
        "batch_norm",
        "batch norm",
        "fss",
        "f",
        "{x} = torch.nn.functional.batch_norm({a}, {b}, {c}, training=True)",
        writes=(1, 2),
        weight=1.5,
    )


def _sizes() -> Iterable[Kind]:
    cut = "{t} = {b}.item()\ntorch._check({t} >= 0)\ntorch._check({t} <= N)\n"
    yield Kind("rows", "unbacked size", "fi", "r", cut + "{x} = {a}.narrow(0, 0, {t}) * 0.5")
    yield Kind(
        "rows_gather",
        "unbacked size",
        "fi",
        "r",
        cut + "{x} = " + _C10D + ".all_gather_into_tensor.default({a}.narrow(0, 0, {t}).clone(), 2, {g})",
        launches=True,
    )
    yield Kind(
        "wait_r", "wait", "r", "r", "{x} = " + _C10D + ".wait_tensor.default({a})", views=0, waits=True, weight=3
    )
    yield Kind("fold", "unbacked size", "fr", "f", "{x} = {a} + {b}.sum(0)", weight=1.5)
    yield Kind(
        "nonzero",
        "unbacked size",
        "ff",
        "f",
        "{t} = torch.nonzero({b} > 0.5)\n{x} = {a} * 0.5 + {t}.to(torch.float32).sum() * 0.001",
        weight=0.7,
    )
    yield Kind("item", "unbacked size", "ff", "f", "{t} = {b}.sum().item()\n{x} = {a} + {t} * 0.001", weight=0.7)


def _nested() -> Iterable[Kind]:
    yield Kind("region", "sub-graph", "ff", "f", "{x} = region({a}, {b})", ways=_DYNAMO)
    yield Kind(
        "region_gather",
        "sub-graph with communication",
        "hf",
        "f",
        "{x} = region_gather_{g}({a}, {b})",
        ways=_DYNAMO,
        weight=1.5,
    )
    yield Kind("cond", "sub-graph", "fi", "f", "{x} = either({b} > {k}, cond_true, cond_false, ({a},))")
    yield Kind(
        "cond_gather",
        "sub-graph with communication",
        "fi",
        "f",
        "{x} = either({b} > {k}, cond_gather_{g}, cond_false, ({a},))",
        weight=1.5,
    )


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kinds in (
        _compute(),
        _views(),
        _in_place(),
        _collectives(),
        _waits(),
        _custom(),
        _random(),
        _statistics(),
        _sizes(),
        _nested(),
    )
    for kind in kinds
}
