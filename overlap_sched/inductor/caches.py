"""Orders in torch's caches of compiled code: used again only after all ranks have agreed on them again.

torch hashes a graph together with its settings, our pass among them, and with a cache hit the pass is not called. So
:func:`settings_key` names all that an order depends on besides the graph. What has no stable key (a user's own function
of costs) is refused, and torch then compiles without its caches.

Where ranks must agree, code in an agreed order carries, as a comment, what this rank has shown to the others; a rank
that finds it shows the same again, at the moment when it would have compiled. Where ranks were asked twice, about
rewrites and then about the order of the rewritten graph, they are asked twice again:

    torch finds code -> show what it carries -> they decide as when it was made -> the code is used
                                             -> they do not    -> torch compiles, with what they have decided

Ranks that find nothing compile and show what they have made, as always. That is torch's cache of FX graphs.
AOTAutograd's cache loads a forward and its backward before either has run, where a rank that misses asks about the
backward only when its forward has run on all ranks: nothing that communicates is used out of it. Why that is sound:
``docs/agreement.md``.

The names of torch's caches are those of the versions in which we have seen them; in another torch nothing that ranks
must agree on is cached.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, partial
from inspect import signature
from pathlib import Path
from threading import local
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import fx
from torch._inductor import config

import overlap_sched
from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.distributed.digest import LAUNCHES_KEPT, WAITS_KEPT
from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import AgreementError, SequenceError
from overlap_sched.fx.graphs import marks_of, module_of
from overlap_sched.fx.operators import declarations
from overlap_sched.inductor import agree
from overlap_sched.inductor.reporting import guard, name_graph, record_cached, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import replayed_allocator


def settings_key(settings: Settings) -> str | None:
    """The cache key of the settings and of this package's code; ``None``: there is none, and nothing may be cached.

    Functions and models have no key unless they offer ``uuid()`` themselves; of dataclasses it is their fields.
    """
    try:
        agreeing = f"{dist.get_world_size()} ranks, {settings.ranks} agree" if agree.asks(settings) else ""
        keys = [_key_of(part) for part in (settings.cost, settings.model, settings.where)]
        if None in keys:
            return None
        fit = (settings.memory_limit, settings.max_slowdown, settings.follows)
        parts = (_package(), torch.__version__, settings.options, settings.ranks_per_node, fit, declarations())
        parts = (*parts, agreeing, replayed_allocator(settings.options), _pinned(settings), *keys)
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()
    except Exception:  # a user's uuid(), files of this package that cannot be read
        return None


def key_after(before: Any, own: str | None) -> str | None:
    """The cache key of two passes in a row; ``before`` may be ``None``, and may have no ``uuid()``."""
    if before is None or own is None:
        return own
    first = before.uuid() if hasattr(before, "uuid") else None
    return None if first is None else f"{first} {own}"


def _pinned(settings: Settings) -> str:
    """Modules and marks of the graph that torch is making a key of, where there are pins; else ``""``.

    Metadata of nodes is in no key of torch's, and a pass is not told which graph it is asked for. So it is looked up
    where torch holds it: in the callers of this function.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        graph = frame.f_locals.get("gm")
        if isinstance(graph, fx.GraphModule):
            parts = [part for part in graph.modules() if isinstance(part, fx.GraphModule)]  # checkpointed bodies
            metas = [node.meta for part in parts for node in part.graph.nodes]
            marks = [marks_of(meta) for meta in metas]
            modules = [module_of(meta) for meta in metas] if settings.options.pins or any(marks) else []
            return repr((marks, modules)) if modules else ""
    return ""


def _key_of(part: Any) -> str | None:
    own = getattr(part, "uuid", None)
    if callable(own):
        return str(own())
    return repr(part) if part is None or is_dataclass(part) or isinstance(part, Struct) else None


@cache
def _package() -> str:
    """The contents of this package: an edited checkout is another version."""
    root = Path(overlap_sched.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


_MARK = "overlap_sched order: "
_REWRITES = "overlap_sched rewrites"
_COMMUNICATES = re.compile("c10d_functional|symm_mem|_dtensor")
"""In generated code, the namespaces of :mod:`overlap_sched.fx.operators`."""


@dataclass(frozen=True)
class CachedOrder:
    """What code carries of the order that it runs.

    Attributes:
        digest: What a rank shows that uses it. Never that of an order which the code does not have.
        agreed: All ranks had agreed on it when it was compiled; else it launches as the original order does.
        rewrites: The same of the rewrites, on which ranks were asked before; not agreed: the code has none. ``None``:
            nobody was asked, as there was nothing to rewrite.
        entry: How it launches; ``None``: as another entry says, or nothing was to be rewritten.
    """

    digest: Digest
    agreed: bool
    rewrites: "CachedOrder | None" = None
    entry: Entry | None = None

    def fits(self, agreement: Agreement) -> bool:
        """Does it run what ranks run that decide so? Code that keeps launches alone is for ranks that launch alike."""
        if self.agreed or agreement.agreed:
            return self.agreed and agreement.agreed
        return self.digest.order.startswith(WAITS_KEPT) != agreement.verdict.launches_alike

    @property
    def line(self) -> str:
        """As text, without line breaks."""
        return _MARK + msgspec.json.encode(self).decode()

    def launches_as_in_force(self, settings: Settings) -> bool | None:
        """Tell whether it launches as is in force for its launches; ``None``: nothing is yet."""
        known = None if self.entry is None else agree.find_in_force(self.entry.launches, settings)
        alike = known == self.entry and (known is None or not agree.may_be_a_part(known, settings))
        if known is not None and alike:
            agree.note_launches(known)
        return None if known is None else alike

    def put_in_force(self, settings: Settings, verdict: Verdict) -> bool:
        """Tell whether it launches as is in force from now on, as all ranks use it."""
        if self.entry is None:
            return True
        known = agree.put_in_force(replace(self.entry, together=verdict.meets), settings)
        if known is not None:
            agree.note_launches(known)
        return known is not None and replace(known, together=self.entry.together) == self.entry


def read_order(source: str) -> CachedOrder | None:
    """Read what generated code carries; ``None``: nothing, or more than one order."""
    lines = [line for line in source.splitlines() if _MARK in line]
    return msgspec.json.decode(lines[0].split(_MARK, 1)[1], type=CachedOrder) if len(lines) == 1 else None


def order_to_cache(
    mine: Digest, agreement: Agreement, kept_order: str, entry: Entry | None = None
) -> CachedOrder | None:
    """Return the order that code carries; ``None``: it must not be cached, as the ranks may decide otherwise next time.

    ``mine`` is what this rank has shown; ``kept_order`` is the digest of the order that the code has where they have
    not agreed; ``entry``: how it launches.
    """
    if mine.failure or not (agreement.agreed or agreement.verdict.differs):  # a rank was late, the store failed
        return None
    if agreement.agreed:
        return CachedOrder(mine, agreed=True, entry=entry)
    kept = LAUNCHES_KEPT if agreement.verdict.launches_alike else WAITS_KEPT
    return CachedOrder(replace(mine, order=f"{kept}{kept_order}"), agreed=False, entry=entry)


def note_rewrites(graph: fx.Graph) -> Callable[[CachedOrder | None], None]:
    """Leave with a graph what the ranks were asked about its rewrites; ``None``: code of it must not be cached.

    It is ``None`` from now on. To change it cannot fail, nor does it need the graph in one piece.
    """
    meta = graph.output_node().meta
    meta[_REWRITES] = None
    return partial(meta.__setitem__, _REWRITES)


def with_rewrites(order: CachedOrder | None, graph: fx.Graph) -> CachedOrder | None:
    """Return the order that the code of a graph is to carry, with what :func:`note_rewrites` has left there."""
    meta = graph.output_node().meta
    if order is None or _REWRITES not in meta:
        return order
    return meta[_REWRITES] and replace(order, rewrites=meta[_REWRITES])


_decided = local()


def decided() -> dict[str, Agreement]:
    """Return what ranks have decided about code that was found and not used, by key, for this thread to compile."""
    return vars(_decided)


def take_or_ask(mine: Digest, settings: Settings) -> Agreement | None:
    """Return what is :func:`decided`, else ask all ranks, see :func:`overlap_sched.inductor.agree.ask`."""
    return decided().pop(mine.key) if mine.key in decided() else agree.ask(mine, settings)


def may_load(settings: Settings, source: str, traced: bool = True) -> tuple[bool, bool]:
    """Tell whether code of a graph may be used, and whether it is to be dropped from the cache.

    The settings are those with which it was compiled, by its cache key. ``traced``: torch has traced the graph.

    Raises:
        AgreementError: With ``strict``, where the ranks differ.
    """
    communicates = _COMMUNICATES.search(source)
    if not agree.asks(settings) or not (communicates or traced):
        return True, False
    if not communicates:
        record_cached(name_graph("graph"), settings.stage, communicates=False)
        return True, False
    cached = read_order(source) if traced else None
    if cached is None:
        return False, False
    questions = (cached,) if cached.rewrites is None else (cached.rewrites, cached)
    in_force = {one.digest.key: one.launches_as_in_force(settings) for one in questions if one.entry is not None}
    if False in in_force.values():
        return False, True
    if in_force and None not in in_force.values():  # nobody has to be asked
        return True, False
    if agree.runs_earlier_code() and any(one.entry is not None and one.entry.moves for one in questions):
        return False, False  # planning keeps launches and waits
    refused: dict[str, Agreement] = {}
    for one in questions:
        name, key = one.digest.name, one.digest.key
        if in_force.get(key):
            continue
        agreement = agree.ask(one.digest, settings)
        if agreement is None:
            return False, False
        if not agreement.agreed:
            refused[key] = agreement
        use = one.fits(agreement) if one is cached else agreement.agreed == one.agreed
        if not use:  # if all have agreed on an order that only keeps launches, they look for a better one together
            decided().update(refused)  # others have planned by now: they will not be asked a second time
        use = use and one.put_in_force(settings, agreement.verdict)
        with guard(f"could not report on {name!r}"):  # it is settled
            if use and one is cached:
                record_cached(name, settings.stage, agreement.reason)
            elif not use and not agreement.agreed:
                what = f"has torch compile {name!r} again, which it found in a cache"
                agree.warn_of_ranks(what, agreement.verdict, settings)
        if not use:
            return False, True
    return True, False


_FUNCTIONS = {
    "cache_hit_post_compile": ["graph", "cache_info", "constants"],
    "_save_graph": ["key", "compiled_graph", "example_inputs", "local", "remote_cache"],
}
"""The functions through which torch's cache of FX graphs uses and saves code, and their parameters."""


def watch_caches(settings: Settings) -> bool:
    """Have torch's caches ask before they use or save code, from now on; tell whether they do, or need not."""
    if not agree.asks(settings):
        return True
    from torch._functorch import config as functorch_config

    return _patch_torch() and not functorch_config.bundled_autograd_cache  # which loads without asking


@cache
def _patch_torch() -> bool:
    """Have torch's cache of FX graphs ask; ``False``: this torch works in another way."""
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstantsWithGm
    from torch.distributed.device_mesh import DeviceMesh

    # torch pickles the mesh of DTensors into the key, with its hash, which is another one in each process: it is
    # computed anew where it is missing
    state_of = vars(DeviceMesh).get("__getstate__")
    if state_of is not None:
        DeviceMesh.__getstate__ = lambda mesh: {**state_of(mesh), "_hash": None}
    found = {name: getattr(FxGraphCache, name, None) for name in _FUNCTIONS}
    if not all(call is not None and list(signature(call).parameters) == _FUNCTIONS[k] for k, call in found.items()):
        return False
    load, save = FxGraphCache.cache_hit_post_compile, FxGraphCache._save_graph

    def load_if_agreed(graph: Any, cache_info: Any, constants: Any) -> Any:
        settings, use, drop = _settings_now(), True, False
        if settings is not None:
            traced = isinstance(constants, CompiledFxGraphConstantsWithGm)  # else AOTAutograd's cache loads it
            use, drop = may_use(settings, graph.source_code, traced)
        if drop:
            shutil.rmtree(FxGraphCache._get_tmp_dir_for_key(graph._fx_graph_cache_key), ignore_errors=True)
        return load(graph, cache_info, constants) if use else (None, cache_info)

    def save_if_agreed(key: str, compiled_graph: Any, *more: Any, **by_name: Any) -> None:
        settings = _settings_now()
        if settings is None or may_save(settings, getattr(compiled_graph, "source_code", "")):
            save(key, compiled_graph, *more, **by_name)

    FxGraphCache.cache_hit_post_compile = staticmethod(load_if_agreed)
    FxGraphCache._save_graph = staticmethod(save_if_agreed)
    return True


def may_use(settings: Settings, source: str, traced: bool) -> tuple[bool, bool]:
    """As :func:`may_load`; what fails is compiled: the pass then asks."""
    try:
        return may_load(settings, source, traced)
    except Exception as error:
        if isinstance(error, SequenceError) or (settings.options.strict and isinstance(error, AgreementError)):
            raise
        warn("overlap_sched leaves a graph in torch's cache", error)
        return False, False


def may_save(settings: Settings, source: str) -> bool:
    """Tell whether code may be cached: not where a rank that finds it could not say what it runs."""
    with guard("keeps a graph out of torch's cache"):
        return not agree.asks(settings) or not _COMMUNICATES.search(source) or read_order(source) is not None
    return False


def _settings_now() -> Settings | None:
    """Those of our pass, where torch is to run it."""
    passes = config.reorder_for_compute_comm_overlap_passes if config.reorder_for_compute_comm_overlap else []
    found = [getattr(p, "settings", None) for p in passes]
    return next((settings for settings in reversed(found) if isinstance(settings, Settings)), None)
