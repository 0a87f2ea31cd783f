"""One model in one mode, in a process of its own: ``python -m scripts.studies.footprint.child MODEL MODE OUT.json``."""

import gc
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor import list_mode_options
from torch.profiler import ProfilerActivity, profile, record_function

import overlap_sched
from overlap_sched import Options
from scripts.studies.footprint.events import events_of, peak_of
from scripts.studies.footprint.models import ENTRIES

MARK = "footprint: backward"
WARM_UP = 2

_OPTIONS: dict[str, dict[str, Any]] = {"ours": {}, "memory": {"base": "memory"}}


def compiled(model: nn.Module, how: str) -> nn.Module:
    """A model as one of :data:`~scripts.studies.footprint.rows.MEASURED` runs it."""
    mode, _, ours = how.partition("+")
    if mode == "eager":
        return torch.compile(model, backend="overlap_sched", options=_OPTIONS[ours]) if ours else model
    if mode == "partitioned":  # Inductor's decompositions and partitions, each operator by its own kernel
        return torch.compile(model, backend="aot_eager_decomp_partition")
    if mode == "not donated":
        torch._functorch.config.donated_buffer = False
        return torch.compile(model)
    options = dict[str, Any](list_mode_options("max-autotune-no-cudagraphs")) if mode == "max-autotune" else {}
    options |= overlap_sched.inductor_options(Options(**_OPTIONS[ours])) if ours else {}
    return torch.compile(model, dynamic=True if mode == "dynamic" else None, options=options or None)


def main() -> None:
    """See the module."""
    name, mode, out = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    entry = next(entry for entry in ENTRIES if entry.name == name)
    model, batch = entry.build().train(), entry.batch()
    run = compiled(model, mode)
    for _ in range(WARM_UP):
        step(run, batch)
        model.zero_grad(set_to_none=True)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            loss = step(run, batch)
        profiler.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(folder, "trace.json").read_text())
    held = sum(t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers(), *batch))
    peak = peak_of(events_of(trace, MARK), held)
    graphs = [report.line for report in overlap_sched.reports()]
    Path(out).write_text(json.dumps({**asdict(peak), "loss": loss, "reports": graphs}))


def step(model: nn.Module, batch: tuple[Tensor, ...]) -> float:
    """Forward, loss, backward: gradients stay."""
    loss = nn.functional.cross_entropy(model(*batch[:-1]), batch[-1])
    with record_function(MARK):
        loss.backward()
    return float(loss.detach())


if __name__ == "__main__":
    main()
