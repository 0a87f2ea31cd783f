"""What each of two gloo ranks runs: a training step under our plug-in, then a page of each graph's report.

``python -m tests.support.inductor.page_ranks FOLDER`` as under torchrun; rank 0 writes ``FOLDER/graph<i>.html`` and
``FOLDER/figures.json``, per graph the step and the exposed time of its report, in microseconds.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import overlap_sched
from overlap_sched import Options
from overlap_sched.report.html.page import write_page
from tests.support.inductor.models import Net
from tests.support.inductor.two_ranks import one


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Net(blocks=2, ranks=dist.get_world_size())
    one(model, options=overlap_sched.inductor_options(Options(headroom="20%", strict=True)))
    plans = [report.report.schedule for report in overlap_sched.reports()]
    if dist.get_rank() == 0:
        for number, plan in enumerate(plans):
            assert plan is not None
            write_page(plan, folder / f"graph{number}.html")
        found = [[plan.scheduled.step_us, plan.scheduled.exposed_us] for plan in plans if plan is not None]
        (folder / "figures.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
