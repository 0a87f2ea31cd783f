"""The names of torch's caches of compiled code, all that we use of them in one place: to be asked before they serve.

As :mod:`overlap_sched.inductor.private`, for the versions in which we have seen them; in another torch nothing that
ranks must agree on is cached.
"""

import shutil
from collections.abc import Callable, Sequence
from inspect import signature
from threading import local
from typing import Any

from torch._inductor import config

from overlap_sched.inductor.settings import Settings

Loading = Callable[[Any, Sequence[str], bool], tuple[bool, bool]]
"""Told our pass, code that was found, and whether torch has traced its graph; else it is all that AOTAutograd's cache
loads at once. May it be used, and is the first of it to be dropped?"""
_CACHE = {
    "cache_hit_post_compile": ["graph", "cache_info", "constants"],
    "_save_graph": ["key", "compiled_graph", "example_inputs", "local", "remote_cache"],
}
"""The functions through which torch's cache of FX graphs uses and saves code, and their parameters."""
_FINDS = {"find_guarded_entry": ["key", "local", "remote_cache", "evaluate_guards", "hints"]}
"""The one by which it finds code."""
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

    if _watching:
        _watching[0] = (may_load, may_save)
    else:
        _keys_without_hashes_of_meshes()
        if not _as_known(FxGraphCache, _CACHE):
            return False
        load, save = FxGraphCache.cache_hit_post_compile, FxGraphCache._save_graph
        _watching.append((may_load, may_save))
        both = _ask_about_what_is_loaded_at_once()

        def loaded(graph: Any, cache_info: Any, constants: Any) -> Any:
            owner = _owner()
            if owner is not None:
                traced, code = isinstance(constants, CompiledFxGraphConstantsWithGm), graph.source_code
                if traced or not both:  # a torch that we do not know: no forward is, so what communicates is missed
                    use = _asked(owner, graph, [code] if traced else ["", code], traced)
                else:
                    use = _together.use
                if not use:
                    return None, cache_info
            return load(graph, cache_info, constants)

        def saved(key: str, compiled_graph: Any, *more: Any, **by_name: Any) -> None:
            owner = _owner()
            if owner is None or _watching[0][1](owner, getattr(compiled_graph, "source_code", "")):
                save(key, compiled_graph, *more, **by_name)

        FxGraphCache.cache_hit_post_compile = staticmethod(loaded)
        FxGraphCache._save_graph = staticmethod(saved)
    return not functorch_config.bundled_autograd_cache  # which loads without asking


def _as_known(place: Any, functions: dict[str, list[str]]) -> bool:
    """Tell whether functions are there, with the parameters that we know."""
    found = {name: getattr(place, name, None) for name in functions}
    return all(call is not None and list(signature(call).parameters) == functions[name] for name, call in found.items())


def _asked(owner: Any, first: Any, sources: Sequence[str], traced: bool) -> bool:
    """Tell whether code that was found may be used; else the first graph of it may be gone from the cache."""
    from torch._inductor.codecache import FxGraphCache

    use, drop = _watching[0][0](owner, sources, traced)
    if drop:
        shutil.rmtree(FxGraphCache._get_tmp_dir_for_key(first._fx_graph_cache_key), ignore_errors=True)
    return use


def _ask_about_what_is_loaded_at_once() -> bool:
    """Have AOTAutograd's cache ask before it loads a forward and its backward, if this torch does as we know."""
    try:
        from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult as Results
    except ImportError:
        return False
    from torch._inductor.codecache import FxGraphCache

    if not (_as_known(Results, _BOTH) and _as_known(FxGraphCache, _FINDS)):
        return False
    load = Results._load_and_post_compile

    def load_both(self: Any, args: Any, fx_config: Any) -> Any:
        owner = _owner()
        if owner is not None:
            graphs = [_found(one) for one in (self.compiled_fw, self.compiled_bw) if one is not None]
            sources = [graph.source_code for graph in graphs if graph is not None]
            _together.use = len(sources) == len(graphs) and _asked(owner, graphs[0], sources, traced=False)
        try:
            return load(self, args, fx_config)
        finally:
            _together.use = False

    Results._load_and_post_compile = load_both
    return True


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
