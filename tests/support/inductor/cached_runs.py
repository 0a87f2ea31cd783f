"""What each rank of a job does: ``python -m tests.support.inductor.cached_runs FOLDER JOB STEP...``.

Each step compiles and runs a training step and a function that does not communicate, with torch's caches of graphs in
``FOLDER/cache<rank>`` unless the step has others; kernels are compiled once for all of them. Writes
``FOLDER/JOB<rank>.pt``: per step what came of it.
"""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import agreement
from overlap_sched.inductor import agree
from tests.support.inductor.generated import events
from tests.support.inductor.models import Swapped, own_store, step

# torch's caches of graphs in a folder of their own, while kernels are compiled once for all.


@contextmanager
def graph_caches_in(folder: Path) -> Iterator[None]:
    """Let Inductor and AOTAutograd keep their graphs there."""
    with ExitStack() as stack:
        for kind in (FxGraphCache, AOTAutogradCache):
            stack.enter_context(mock.patch.object(kind, "_get_tmp_dir", return_value=str(folder / kind.__name__)))
        yield


WIDTH = 8


def alone(x: torch.Tensor) -> torch.Tensor:
    """It does not communicate."""
    return x.sin().cos() + 1


def run(name: str, folder: Path) -> dict[str, Any]:
    """One step: its name says how the ranks, or the last one, differ from the first job."""
    odd = dist.get_rank() == dist.get_world_size() - 1
    here = odd or "on all" in name
    with ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(own_store(name))
        asked = stack.enter_context(mock.patch.object(agree, "agree", side_effect=agreement.agree))
        cache = folder / ("wiped" if "wiped" in name and here else f"cache{dist.get_rank()}")
        stack.enter_context(graph_caches_in(cache))
        headroom = "49%" if "options" in name and here else "50%"
        model = Swapped(WIDTH, dist.get_world_size())
        torch._dynamo.reset()
        torch._inductor.codecache.PyCodeCache.cache_clear()
        counters.clear()
        overlap_sched.clear_reports()
        dist.barrier()
        how = Options(headroom=headroom, rewrites=("bucket",) if "buckets" in name else ())
        if "torch alone" not in name:
            where = "gloo" if "buckets" in name else None  # where a launch costs enough to be worth a bucket
            stack.enter_context(overlap_sched.enabled(how, timeout_s=30, cluster=where))
        x = torch.linspace(-1, 1, 64)
        single = torch.compile(alone)(x)
        found: dict[str, Any] = {"alone": _counted(), "alone is equal": torch.allclose(single, alone(x))}
        counters.clear()
        results, code = run_and_get_code(step, model, torch.compile(model, fullgraph=True), WIDTH)
        found |= {
            **_counted(),
            "results": results,
            "events": [[tuple(event) for event in events(text)] for text in code],
            "asked": asked.call_count,
            "changed": [one.report.changed for one in overlap_sched.reports() if one.report.schedule is not None],
            "kept": [one.report.kept for one in overlap_sched.reports() if one.report.schedule is not None],
            "found": [re.sub(" [0-9]+/[0-9]+", "", one.name) for one in overlap_sched.reports() if one.report.cached],
            "warned": [
                str(w.message) for w in caught if issubclass(w.category, overlap_sched.errors.OverlapSchedWarning)
            ],
        }
    return found


def _counted() -> dict[str, int]:
    """Hits and misses of torch's caches."""
    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    return {
        "hits": inductor["fxgraph_cache_hit"],
        "misses": inductor["fxgraph_cache_miss"],
        "bypassed": inductor["fxgraph_cache_bypass"],
        "autograd hits": autograd["autograd_cache_hit"],
        "autograd misses": autograd["autograd_cache_miss"],
    }


def main() -> None:
    """See the module."""
    folder, job = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in sys.argv[3:]:
        found[name] = run(name, folder)
    torch.save(found, folder / f"{job}{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
