"""Load a graph that torch wrote to a file in a real job, without running the file.

``TORCH_TRACE`` and tlparse save one ``fx_graph_runnable`` for each compiled graph; ``save_graph_repro`` in
``torch._dynamo.repro.after_aot`` writes the same. A dump of 64 ranks loads on a laptop: tensors are fake, process
groups are only names and sizes.

The file is never imported or evaluated. It is parsed, and its parts are read by modules of one idea each:
``text`` (what is in the file), ``source`` (cut it up), ``literals`` (arguments), ``operators`` (of ``torch.ops``),
``graph`` (nodes), ``inputs`` (``load_args``), ``attributes`` (constants), ``groups`` (process groups), ``values`` (fake
execution), ``higher_order`` (higher-order operators), ``guess`` (shapes that it does not find), ``size_names`` (what
sizes may be given), ``counting`` (how many values), put together by ``loader``.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import fx

from overlap_sched.dump.groups import DumpGroup, given_groups, stand_ins
from overlap_sched.dump.loader import Loader
from overlap_sched.dump.source import DumpSource, read_source
from overlap_sched.dump.step import one_step
from overlap_sched.dump.text import listed
from overlap_sched.dump.values import MisfitError, Results, fake_execution
from overlap_sched.fx.calls import GROUPS_KEY
from overlap_sched.fx.sizes import SIZES_KEY
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.report.words.sizes import AssumedSize
from overlap_sched.scheduler.driver import no_collection


@dataclass(frozen=True)
class Dump:
    """A loaded graph.

    Attributes:
        gm: The graph. Every node that has a value holds it in ``meta["val"]``: fake tensors on the devices of the dump,
            views on the storage that they look at; integers for symbolic sizes. ``gm.meta["overlap_sched_groups"]``
            holds ``{group name: (size, ranks or None)}``.
        name: The file's name without its endings.
        groups: The process groups that collectives of the graph name, in the order of first use.
        notes: What was guessed, and how often.
        guessed: Data-dependent sizes that were guessed, by symbol where it has one, else by node.
        choice: Where the file has several graphs: which one was read, and which there are; else ``""``.
    """

    gm: fx.GraphModule
    name: str
    groups: Mapping[str, DumpGroup]
    notes: Mapping[str, int]
    guessed: Mapping[str, int] = field(default_factory=dict)
    choice: str = ""


def load_dump(
    path: str | Path,
    *,
    groups: Mapping[str, int | Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    graph: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    backward: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dump:
    """Load a dump, plain or gzipped.

    Args:
        path: A file as torch writes it: ``class Repro``, ``load_args(reader)``. Or a graph as torch prints it to read
            (tlparse: ``aot_forward_graph``), shapes and devices in annotations: each input then has its own storage.
        groups: Size of a process group, or its ranks, by name. Needed only where the file does not say it.
        sizes: Values of data-dependent (unbacked) sizes, by the name of the symbol (``u0``) or of the node that reads
            it. Others all get one value: that of an all_to_all spread evenly, the first found with which every node
            fits. Where there is none, the value with which the graph holds most bytes, of those that it asserts; 8192
            where it asserts no limit. What the file says of such sizes counts only where the splits of each
            all_to_all add to its rows by it; else it is left out, and a note says so.
        graph: Which of several graphs in the file, from 1: logs of ``TORCH_LOGS`` have many. ``None``: the first that
            calls operators with their overloads (Dynamo's do not); ``Dump.choice`` lists them.
        limits: How large the file and the graph may be.
        backward: The backward graph of the same step: both are joined into one graph.
        progress: Called with (nodes done, nodes in all) now and then.

    Raises:
        DumpError: One of its subclasses, with file, line, what is not understood, and how to mend it.
        InputTooLargeError: The file or the graph is larger than the limits.
    """
    source = read_source(path, limits, graph)
    if backward is not None:
        source = one_step(source, read_source(backward, limits))
    name = Path(path).name.split(".")[0]
    given = given_groups(groups)
    make = partial(Loader, source, given, sizes or {}, limits=limits, results=Results())
    first = make(strict=True)
    with warnings.catch_warnings(), no_collection(), stand_ins(first.groups_asked_by_name()), fake_execution():
        warnings.simplefilter("ignore")  # what fake kernels say of the dump's own graph
        loader = _run(first, make, progress, whole=False)
        if found := loader.contradictions():
            anew = partial(make, balanced=True)
            balanced = _run(anew(strict=True), anew, progress, whole=False)
            count = balanced.count_uneven()
            if left := balanced.contradictions():  # compare all of them
                loader, balanced = (_run(other(strict=True), other, progress) for other in (make, anew))
                found, left = loader.contradictions(), balanced.contradictions()
                count = len(found)
            mended = len(left) < len(found)
            loader = balanced if mended else loader
            loader.note_contradictions(found[0], count, mended=mended)
        elif loader.chooses:
            others = [_run(make(strict=True, within=within), make, None) for within in ("least", "most")]
            loader = max([loader, *others], key=Loader.bytes)
        gm = loader.graph_module()
    gm.meta[GROUPS_KEY] = dict(loader.groups)
    gm.meta[SIZES_KEY] = tuple(AssumedSize(name, "", size, False) for name, size in loader.guessed.items())
    notes = dict(sorted(loader.notes.items()))
    return Dump(gm, name, loader.groups, notes, loader.guessed, _choice(source))


def _choice(source: DumpSource) -> str:
    if len(source.graphs) < 2:
        return ""
    return (
        f"{len(source.graphs):,} graphs are in the file, graph {source.chosen} was read; --graph N (in Python graph=N) "
        f"takes another: {listed(source.graphs)}"
    )


def _run(
    loader: Loader, make: Callable[..., Loader], progress: Callable[[int, int], None] | None, *, whole: bool = True
) -> Loader:
    """Run a loader, or one with the first other value of data-dependent sizes with which every node fits.

    Not ``whole``: up to the first sizes that contradict each other.
    """
    misfit = _misfit(loader, progress, whole)
    if misfit is None:
        return loader
    for size in loader.other_sizes(misfit):
        other = make(default=size, strict=True)
        if _misfit(other, progress, whole) is None:
            return other
    loader = make()
    loader.run(progress)
    return loader


def _misfit(loader: Loader, progress: Callable[[int, int], None] | None, whole: bool) -> Sequence[int] | None:
    """Run the loader. Sizes at the first node that a size it took does not fit; None: all fit."""
    try:
        loader.run(progress, whole=whole)
    except MisfitError as error:
        return error.sizes
    return None
