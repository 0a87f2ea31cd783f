"""The names of torch's caches of compiled code, all that we use of them in one place: to be asked before they serve.

As :mod:`overlap_sched.inductor.private`, for the versions in which we have seen them; in another torch nothing that
ranks must agree on is cached.
"""

import shutil
from collections.abc import Callable, Sequence
from inspect import signature
from threading import local
from typing import Any, Protocol

from torch._inductor import config

from overlap_sched.inductor.settings import Settings


class Loading(Protocol):
    """Told of code that was found in caches: may it be used, and is the first to be dropped from there?

    It is that of one graph that torch has traced, or all that AOTAutograd's cache loads at once.
    """

    def __call__(self, owner: Any, sources: Sequence[str], traced: bool) -> tuple[bool, bool]:
        """Answer; ``owner``: our pass."""


_CACHE = {
    "cache_hit_post_compile": ["graph", "cache_info", "constants"],
    "_save_graph": ["key", "compiled_graph", "example_inputs", "local", "remote_cache"],
    "find_guarded_entry": ["key", "local", "remote_cache", "evaluate_guards", "hints"],
}
"""The functions through which torch's cache of FX graphs uses, saves and finds code, and their parameters."""
_BOTH = {"_load_and_post_compile": ["self", "args", "fx_config"]}
"""The function through which AOTAutograd's cache loads a forward and then its backward."""
_watching: list[tuple[Loading, Callable[[Any, str], bool]]] = []


class _Together(local):
    """Whether what AOTAutograd's cache is loading may be used: nothing, unless it has been asked about."""

    use = False


_together = _Together()


def watch_cache(may_load: Loading, may_save: Callable[[Any, str], bool]) -> bool:
    """Have torch's cache ask before it uses or saves code; from the first call on, for good.

    Nothing is asked unless a pass of ours is set, which is then given as the ``owner``; ``traced``: the graph is there,
    it is not AOTAutograd's cache that loads forward and backward at once. ``False``: this torch works in another way.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstantsWithGm

    try:
        from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult
    except ImportError:
        return False
    if _watching:
        _watching[0] = (may_load, may_save)
    else:
        _keys_without_hashes_of_meshes()
        for owner_of, functions in ((FxGraphCache, _CACHE), (GenericAOTAutogradResult, _BOTH)):
            for name, parameters in functions.items():
                if list(signature(getattr(owner_of, name, repr)).parameters) != parameters:
                    return False
        load, save = FxGraphCache.cache_hit_post_compile, FxGraphCache._save_graph
        _watching.append((may_load, may_save))

        def loaded(graph: Any, cache_info: Any, constants: Any) -> Any:
            owner = _owner()
            if owner is not None:
                traced = isinstance(constants, CompiledFxGraphConstantsWithGm)
                if not (_asked(owner, [graph], traced) if traced else _together.use):
                    return None, cache_info
            return load(graph, cache_info, constants)

        def saved(key: str, compiled_graph: Any, *more: Any, **by_name: Any) -> None:
            owner = _owner()
            if owner is None or _watching[0][1](owner, getattr(compiled_graph, "source_code", "")):
                save(key, compiled_graph, *more, **by_name)

        _ask_about_what_is_loaded_at_once(GenericAOTAutogradResult)
        FxGraphCache.cache_hit_post_compile = staticmethod(loaded)
        FxGraphCache._save_graph = staticmethod(saved)
    return not functorch_config.bundled_autograd_cache  # which loads without asking


def _asked(owner: Any, graphs: Sequence[Any], traced: bool) -> bool:
    """Tell whether graphs that were found may be used; else the first may have been dropped from the cache."""
    from torch._inductor.codecache import FxGraphCache

    use, drop = _watching[0][0](owner, [graph.source_code for graph in graphs], traced)
    if drop:
        folder = FxGraphCache._get_tmp_dir_for_key(graphs[0]._fx_graph_cache_key)
        shutil.rmtree(folder, ignore_errors=True)
    return use


def _ask_about_what_is_loaded_at_once(results: Any) -> None:
    """Have AOTAutograd's cache ask before it loads a forward and its backward; by the class of its results."""
    load = results._load_and_post_compile

    def load_both(self: Any, args: Any, fx_config: Any) -> Any:
        owner = _owner()
        if owner is not None:
            graphs = [_found(one) for one in (self.compiled_fw, self.compiled_bw) if one is not None]
            _together.use = None not in graphs and _asked(owner, graphs, traced=False)
        try:
            return load(self, args, fx_config)
        finally:
            _together.use = False

    results._load_and_post_compile = load_both


def _found(compiled: Any) -> Any:
    """The graph that AOTAutograd's cache has by its key, if it is on this machine; its code is not loaded yet."""
    from torch._inductor.codecache import FxGraphCache

    if not hasattr(compiled, "fx_graph_cache_info"):
        return None
    key, _ = compiled.fx_graph_cache_info
    guards = compiled.fx_graph_guard_expr
    return FxGraphCache.find_guarded_entry(key, True, None, lambda found, _: found == guards, [])[0]


def _keys_without_hashes_of_meshes() -> None:
    """Have a graph that takes DTensors the same cache key in every process.

    torch pickles their mesh into the key, with the hash that it remembers. It is one of strings, so each process has
    another. It is computed anew where it is missing.
    """
    from torch.distributed.device_mesh import DeviceMesh

    state_of = vars(DeviceMesh).get("__getstate__")
    if state_of is None:
        return

    def state(mesh: Any) -> dict[str, Any]:
        found: dict[str, Any] = state_of(mesh)
        return {**found, "_hash": None} if "_hash" in found else found

    DeviceMesh.__getstate__ = state


def _owner() -> Any | None:
    """Our pass, where torch is to run it."""
    if not config.reorder_for_compute_comm_overlap:
        return None
    passes = [
        p for p in config.reorder_for_compute_comm_overlap_passes if isinstance(getattr(p, "settings", None), Settings)
    ]
    return passes[-1] if passes else None
