"""What each of two gloo ranks runs: a training step under our plug-in, then a page of each graph's report.

``python -m tests.support.inductor.page_ranks FOLDER`` as under torchrun; rank 0 writes ``FOLDER/graph<i>.html`` and
``FOLDER/figures.json``, per graph the step and the exposed time of its report, in microseconds, and how many rewrites.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import overlap_sched
from overlap_sched import Options
from tests.support.inductor.models import Net
from tests.support.inductor.two_ranks import one


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Net(blocks=2, ranks=dist.get_world_size())
    one(model, options=overlap_sched.inductor_options(Options(headroom="100%", rewrites=("bucket",), strict=True)))
    if dist.get_rank() == 0:
        overlap_sched.write_pages(folder, budgets=3)
        found = []
        for report in (each.report for each in overlap_sched.reports()):
            assert report.schedule is not None
            figures = report.schedule.scheduled
            rewrites = 0 if report.made is None else len(report.made.rewrites)
            found.append([figures.step_us, figures.exposed_us, rewrites])
        (folder / "figures.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
