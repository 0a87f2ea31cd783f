"""A forward beside the backward of another micro-batch: what interleaving them hides, in how much memory.

``python -m scripts.studies.pipelines.multiplexed``: graphs that are traced from torchtitan's DeepSeek-V3 16B (FSDP over
64 ranks, expert parallel over 8; its whole step, cut at the loss) and Llama 3 8B (FSDP x tensor parallel). Each graph
is ordered by itself first. What is compared has that much memory: the backward, then the forward (what GraphPP's
multiplexed graphs do), and some more.
"""

import argparse
from pathlib import Path

from overlap_sched.judge.replay import Replay
from overlap_sched.options import Options
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs, MeasuredGraph
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.problem.parts import cut_problem
from overlap_sched.report.units import size
from overlap_sched.scheduler.driver import schedule

DEEPSEEK, LOSS = "llama_repro/titan/graphs/titan-deepseek3-16b-fsdp64-ep8.json.gz", ("split_with_sizes_82", "slice_289")
"""Where the loss begins to work in chunks, and where its backward has ended."""
LLAMA = "scripts/instances/llama3_8b_{}_64_2d.json.gz"
EXCHANGES = ("all_to_all",)


def halves(model: str) -> tuple[Problem, Problem]:
    """Forward and backward of a model, without the head of DeepSeek's."""
    if model == "llama":
        return read_problem(LLAMA.format("fw")), read_problem(LLAMA.format("bw"))
    whole = read_problem(DEEPSEEK)
    number = {node.name: v for v, node in enumerate(whole.nodes)}
    first, second = (number[name] for name in LOSS)
    front, back = cut_problem(whole, second)
    return cut_problem(front, first)[0], back


def exposed_us(problem: Problem, line: Replay, kinds: tuple[str, ...]) -> float:
    """What compute waits for collectives of some kinds; of all without any."""
    launches = {v: node.collective for v, node in enumerate(problem.nodes) if node.kind is Kind.WAIT}
    ops = {v: "" if launch is None else problem.nodes[launch].op for v, launch in launches.items()}
    return sum(line.stall_us[v] for v, op in ops.items() if op.startswith(kinds or ""))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("deepseek", "llama"), default=["deepseek", "llama"])
    parser.add_argument("--headrooms", nargs="+", default=["0", "1GiB", "4GiB"])
    options = parser.parse_args()
    print("| model | headroom | order | step | exposed | of it all_to_all | peak |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for model in options.models:
        ahead, back = halves(model)
        for headroom in options.headrooms:
            row(model, headroom, ahead, back)


def row(model: str, headroom: str, ahead: Problem, back: Problem) -> None:
    """Print the rows of one headroom."""

    def order(problem: Problem) -> Order:
        return schedule(problem, Options(headroom=headroom)).order

    graphs = JobGraphs(lambda source: ahead if source.path.name == "forward" else back, order)
    for name in ("forward", "backward"):
        graphs.whole(GraphSource(name, Path(name), None, ()), None)
    pair = graphs.interleaved("forward", "backward")
    line("as written", model, headroom, [(one, True) for one in graphs.graphs.values()])
    line("each ordered", model, headroom, [(one, False) for one in graphs.graphs.values()])
    line("interleaved", model, headroom, [(pair, False)])


def line(name: str, model: str, headroom: str, runs: list[tuple[MeasuredGraph, bool]]) -> None:
    """Print one row: graphs that run one behind the other."""
    judged = [(one.problem, one.before if written else one.ordered) for one, written in runs]
    step, exposed, exchanges = (
        sum(values) / 1e3
        for values in (
            [run.timeline.step_us for _, run in judged],
            [exposed_us(problem, run.timeline, ()) for problem, run in judged],
            [exposed_us(problem, run.timeline, EXCHANGES) for problem, run in judged],
        )
    )
    peak = size(max(max(run.profile) for _, run in judged)) if len(judged) == 1 else ""
    print(
        f"| {model} | {headroom} | {name} | {step:.2f} ms | {exposed:.2f} ms | {exchanges:.2f} ms | {peak} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
