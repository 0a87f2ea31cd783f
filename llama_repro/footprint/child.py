"""One model in one mode, in a process of its own: ``python -m llama_repro.footprint.child MODEL MODE OUT.json``."""

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

import overlap_sched
from llama_repro.footprint.events import events_of, peak_of
from llama_repro.footprint.models import ENTRIES
from overlap_sched import Options

MARK = "footprint: backward"
WARM_UP = 2

MODES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "eager": lambda model: model,
    "default": lambda model: torch.compile(model),
    "dynamic": lambda model: torch.compile(model, dynamic=True),
    "memory": lambda model: torch.compile(model, options=overlap_sched.inductor_options(Options(base="memory"))),
}
"""What is run here. All else needs a GPU."""


def main() -> None:
    """See the module."""
    name, mode, out = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    entry = next(entry for entry in ENTRIES if entry.name == name)
    model, batch = entry.build().train(), entry.batch()
    run = MODES[mode](model)
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
