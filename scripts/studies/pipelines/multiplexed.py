"""A forward beside the backward of another micro-batch: what interleaving them hides, in how much memory.

``python -m scripts.studies.pipelines.multiplexed``: graphs that are traced from torchtitan's DeepSeek-V3 16B (FSDP over
64 ranks, expert parallel over 8; its whole step, cut at the loss) and Llama 3 8B (FSDP x tensor parallel). Each graph
is ordered by itself first. What is compared has that much memory: the backward, then the forward (what GraphPP's
multiplexed graphs do), and some more.
"""

import argparse
from itertools import product
from pathlib import Path

from overlap_sched.judge.replay import Replay
from overlap_sched.options import Options
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.problem.parts import cut_problem
from overlap_sched.report.units import size
from overlap_sched.scheduler.driver import schedule

DEEPSEEK, LOSS = "llama_repro/titan/graphs/titan-deepseek3-16b-fsdp64-ep8.json.gz", ("split_with_sizes_82", "slice_289")
"""Where the loss begins to work in chunks, and where its backward has ended."""
LLAMA = "scripts/instances/llama3_8b_{}_64_2d.json.gz"


def halves(model: str) -> tuple[Problem, Problem]:
    """Forward and backward of a model, without the head of DeepSeek's."""
    if model == "llama":
        return read_problem(LLAMA.format("fw")), read_problem(LLAMA.format("bw"))
    whole = read_problem(DEEPSEEK)
    number = {node.name: v for v, node in enumerate(whole.nodes)}
    first, second = (number[name] for name in LOSS)
    front, back = cut_problem(whole, range(second))
    return cut_problem(front, range(first))[0], back


def exposed_us(problem: Problem, line: Replay, kind: str = "") -> float:
    """What compute waits for collectives of a kind; of all without any."""
    launches = {v: node.collective for v, node in enumerate(problem.nodes) if node.kind is Kind.WAIT}
    ops = {v: "" if launch is None else problem.nodes[launch].op for v, launch in launches.items()}
    return sum(line.stall_us[v] for v, op in ops.items() if op.startswith(kind))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("deepseek", "llama"), default=["deepseek", "llama"])
    parser.add_argument("--headrooms", nargs="+", default=["0", "1GiB", "4GiB"])
    options = parser.parse_args()
    print("| model | headroom | order | step | exposed | of it all_to_all | peak |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model, headroom in product(options.models, options.headrooms):
        ahead, back = halves(model)
        print_rows(f"| {model} | {headroom} |", ahead, back, Options(headroom=headroom))


def print_rows(begin: str, ahead: Problem, back: Problem, options: Options) -> None:
    """Print graphs that run one behind the other as written and ordered, and both interleaved."""
    both = {"forward": ahead, "backward": back}
    graphs = JobGraphs(lambda source: both[source.name], lambda problem: schedule(problem, options).order)
    for name in both:
        graphs.whole(GraphSource(name, Path(name), None, ()), None)
    apart, pair = list(graphs.graphs.values()), graphs.interleaved("forward", "backward")
    rows = {
        "as written": [(one.problem, one.before) for one in apart],
        "each ordered": [(one.problem, one.ordered) for one in apart],
        "interleaved": [(pair.problem, pair.ordered)],
    }
    for name, runs in rows.items():
        lines = [(problem, run.timeline) for problem, run in runs]
        times = (
            sum(line.step_us for _, line in lines),
            sum(exposed_us(problem, line) for problem, line in lines),
            sum(exposed_us(problem, line, "all_to_all") for problem, line in lines),
        )
        peak = size(max(runs[0][1].profile)) if len(runs) == 1 else ""
        print(begin, name, "|", *(f"{us / 1e3:.2f} ms |" for us in times), peak, "|", flush=True)


if __name__ == "__main__":
    main()
