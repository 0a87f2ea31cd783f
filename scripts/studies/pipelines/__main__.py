"""Pipeline schedules of a model like Llama 3 8B: named ones, and what is found within the same memory.

``python -m scripts.studies.pipelines``: 32 layers and a head that takes as long as 2.4 of them, on 4 and 8 ranks. The
limit of all ranks is what the named schedule that is asked about needs.
"""

import argparse
import time
from dataclasses import replace
from itertools import product

from overlap_sched.pipeline.best import find_pipeline
from overlap_sched.pipeline.compare import PlannedPipeline, compare_schedules, named_schedules
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.report.units import size

LAYERS, HEAD = 32, 2.4
F_US, I_US, W_US = 1000.0, 1120.0, 860.0
OUTPUT, SAVED, KEPT, PARAMETERS = 64 << 20, 300 << 20, 220 << 20, 3 << 30


def job_of(ranks: int, micro_batches: int) -> PipelineJob:
    """A stage per layer, and the head."""
    stages = []
    for layers in (*(1.0,) * LAYERS, HEAD):
        f, i, w = (round(layers * us) for us in (F_US, I_US, W_US))
        blocks = (PipelineBlock(us, 0, OUTPUT) for us in (f, i + w, i))
        held = (int(layers * size) for size in (SAVED, KEPT, PARAMETERS / LAYERS))
        stages.append(PipelineStage(*blocks, PipelineBlock(w), *held))
    places, route = tuple(s % ranks for s in range(LAYERS + 1)), Route(tuple(range(LAYERS + 1)), range(micro_batches))
    return PipelineJob(f"{ranks} x {micro_batches}", tuple(stages), places, ranks, (route,), PipelineLink(10.0, 50e9))


def peak(one: PlannedPipeline) -> int:
    """The most bytes of any rank."""
    return max(rank.bytes for rank in one.peaks)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--limits", nargs="+", default=["1f1b", "zbv", "interleaved:2"])
    options = parser.parse_args()
    print(
        "| ranks x micro-batches | limit: that of | best named | found | made from | bound | above it | gain | took |"
    )
    print("| --- " * 9 + "|")
    for ranks, count in product(options.ranks, options.micro_batches):
        job = job_of(ranks, count)
        planned, _ = compare_schedules(job, named_schedules(job))
        for name in options.limits:
            limit = max(peak(one) for one in planned if one.name == name)
            best = min((one for one in planned if peak(one) <= limit), key=lambda one: one.replay.step_us)
            began = time.process_time()
            found = find_pipeline(replace(job, memory_limit_bytes=(limit,) * ranks), 1)
            assert found is not None
            us, named_us = found.plan.replay.step_us, best.replay.step_us
            print(
                f"| {job.name} | {name}, {size(limit)} | {best.name}, {named_us / 1e3:.2f} ms | {us / 1e3:.2f} ms | "
                f"{found.made_from} | {found.bound_us / 1e3:.2f} ms | {100 * (us / found.bound_us - 1):.2f} % | "
                f"{100 * (1 - us / named_us):.2f} % | {time.process_time() - began:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
