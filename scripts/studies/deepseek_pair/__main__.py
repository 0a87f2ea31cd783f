"""DeepSeek's forward beside a backward, interleaved by our scheduler from its own trace.

    git clone https://github.com/deepseek-ai/profile-data
    python -m scripts.studies.deepseek_pair profile-data/train.json
    python -m scripts.studies.deepseek_pair profile-data/train.json --slowdowns    what compute loses beside transfers

The trace is of one rank of 64 (H800, DualPipe): four layers forward of one micro-batch beside four backward of another.
What is told apart by hand there is found here. Each kernel is an operator; those of a phase stay in order, and
phases take what the ones before them in their direction give::

    forward     attn(F) > dispatch(F) > mlp(F) > combine(F) > attn(F) of the next layer
    backward    combine(B) > mlp(B) > dispatch(B) > attn(B) > combine(B) of the next layer
                              > mlp(W)                > attn(W)

Durations are as measured, so compute is as slow as it was beside communication. Where two streams compute at once they
share that time. Kernels named ``notify`` wait for other ranks: they are counted once and left out once. The trace
has no sizes: memory is not limited. Simulated, but for the rows of the trace.

Slow-downs are of kernels of 20 us and more at the same place of the same phase in different layers, some of them wholly
beside dispatch or combine, others not at all, without other compute beside them. Matmuls have 112 of 132
multiprocessors in both cases.
"""

import argparse
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from llama_repro.harness.console import markdown_table
from overlap_sched import Options, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Group, Kind, Node, Order, Problem

COMMUNICATION = 27
"""The stream of the trace that dispatches and combines."""


class Phase(NamedTuple):
    """A part of a layer: its name in the trace, when it began to run, its kernels, and those of its transfer."""

    name: str
    start_us: float
    computed: list[dict[str, Any]]
    sent: list[dict[str, Any]]


def read_phases(path: Path) -> list[Phase]:
    """Return the phases as they were launched."""
    events = json.loads(path.read_text())["traceEvents"]
    marks = sorted(
        (e["ts"], e["name"]) for e in events if e.get("cat") == "user_annotation" and e["name"].endswith(")")
    )
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    kernels = (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    phases = [Phase(name, float("inf"), [], []) for _, name in marks]
    for e in sorted(kernels, key=lambda e: e["ts"]):
        at = bisect_right(marks, (launched[e["args"]["correlation"]], "~")) - 1
        phases[at] = phases[at]._replace(start_us=min(phases[at].start_us, e["ts"]))
        (phases[at].sent if e["args"]["stream"] == COMMUNICATION else phases[at].computed).append(e)
    return phases


def common_us(kernel: dict[str, Any], others: Iterable[dict[str, Any]]) -> float:
    """Return for how long others run beside a kernel; of two at once, both count."""
    begin, end = kernel["ts"], kernel["ts"] + kernel["dur"]
    both_us = (min(end, e["ts"] + e["dur"]) - max(begin, e["ts"]) for e in others if e is not kernel)
    return sum(us for us in both_us if us > 0)


def compare_places(phases: Sequence[Phase]) -> dict[str, list[float]]:
    """Return, by class of kernel, how many times as long each takes beside a transfer as alone."""
    sent = [e for phase in phases for e in phase.sent if re.search("internode::(dispatch|combine)<", e["name"])]
    computed, found = [e for phase in phases for e in phase.computed], defaultdict[str, list[float]](list)
    places = defaultdict[tuple[str, int, str], tuple[list[float], list[float]]](lambda: ([], []))
    for phase in phases:
        for k, e in enumerate(phase.computed):
            part = common_us(e, sent) / max(e["dur"], 1)
            if not 0.1 < part < 0.9 and common_us(e, computed) < 0.05 * e["dur"]:
                places[phase.name, k, e["name"]][part > 0.5].append(e["dur"])
    for (*_, name), (alone_us, beside_us) in places.items():
        if alone_us and beside_us and median(alone_us) >= 20:
            kind = "matmul" if "gemm" in name else "attention" if "flash" in name else "bound by memory"
            found[kind].append(median(beside_us) / median(alone_us))
    return found


def share_time(kernels: Sequence[dict[str, Any]]) -> list[float]:
    """Return what each kernel takes where those that run at once share the time: together as long as any runs."""
    shares_us = [0.0] * len(kernels)
    for begin, end in pairwise(sorted({t for e in kernels for t in (e["ts"], e["ts"] + e["dur"])})):
        running = [k for k, e in enumerate(kernels) if e["ts"] <= begin and end <= e["ts"] + e["dur"]]
        for k in running:
            shares_us[k] += (end - begin) / len(running)
    return shares_us


def make_problem(phases: Sequence[Phase], notify: bool) -> tuple[Problem, Order]:
    """The forward, then the backward, without any overlap; and the order in which the trace has them."""
    computed = sorted((e for phase in phases for e in phase.computed), key=lambda e: e["ts"])
    times_us = {id(e): us for e, us in zip(computed, share_time(computed), strict=True)}
    nodes, starts_us, ends = [Node("given", Kind.INPUT)], [float("-inf")], list[int]()
    for direction in ("F)", "BW"):
        result = computed = 0
        for number, phase in enumerate(one for one in phases if one.name[-2] in direction):
            name = f"{phase.name}.{number}"
            if sent_us := sum(e["dur"] for e in phase.sent if notify or "notify" not in e["name"]):
                launch = Node(name, Kind.COLLECTIVE, (result,), time_us=sent_us, op="all_to_all", group="ep")
                nodes += [launch, Node(f"{name}.wait", Kind.WAIT, (len(nodes),), collective=len(nodes))]
                starts_us += [phase.start_us, float("inf")]
                result = len(nodes) - 1
                continue
            given = computed if phase.name[-2] == "W" else result
            for k, e in enumerate(phase.computed):
                nodes.append(Node(f"{name}.{k}", Kind.COMPUTE, (given,), time_us=times_us[id(e)]))
                starts_us.append(phase.start_us)
                given = len(nodes) - 1
            if phase.name[-2] == "W":
                ends.append(given)
            else:
                result = computed = given
        ends.append(result)
    nodes.append(Node("output", Kind.OUTPUT, tuple(ends)))
    problem = Problem("deepseek pair", tuple(nodes), (), {"ep": Group(64, intra_node=False, nodes=8)})
    return problem, order_by_start(problem, [*starts_us, float("inf")])


def order_by_start(problem: Problem, starts_us: Sequence[float]) -> Order:
    """Compute as in the trace, launches as soon as what they send is there, waits just before what takes their result."""
    places = [(start_us, v) for v, start_us in enumerate(starts_us)]
    for v, node in enumerate(problem.nodes):
        for u in node.deps if node.kind is not Kind.WAIT else ():
            if node.kind is Kind.COLLECTIVE:
                places[v] = (places[u][0], places[u][1] + 0.5)
            elif problem.nodes[u].kind is Kind.WAIT:
                places[u] = min(places[u], (starts_us[v], v - 0.5))
    return tuple(sorted(problem.original_order, key=places.__getitem__))


def main() -> None:
    """Print steps and exposed times, with and without what waits for other ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="train.json of deepseek-ai/profile-data")
    parser.add_argument("--slowdowns", action="store_true", help="what compute loses beside transfers, by class")
    options = parser.parse_args()
    phases, rows = read_phases(options.trace), []
    if options.slowdowns:
        for kind, ratios in compare_places(phases).items():
            rows.append(
                (kind, f"{len(ratios)}", *(f"{one:.2f}" for one in np.percentile(ratios, (0, 25, 50, 75, 100))))
            )
        print(markdown_table(("class", "kernels", "least", "25 %", "median", "75 %", "most"), rows))
        return
    for notify in (True, False):
        problem, by_hand = make_problem(phases, notify)
        found = schedule(problem, Options()).order
        assert violation(problem, found) is None
        compute_us = sum(node.time_us for node in problem.nodes if node.kind is Kind.COMPUTE)
        for name, order in (
            ("one behind the other", problem.original_order),
            ("as in the trace", by_hand),
            ("ours", found),
        ):
            step_us = replay(problem, order).step_us
            cells = (f"{step_us / 1e3:.3f}", f"{(step_us - compute_us) / 1e3:.3f}", f"{1 - compute_us / step_us:.1%}")
            rows.append(("counted" if notify else "left out", name, *cells))
    print(markdown_table(("notify", "order", "step, ms", "exposed, ms", "of the step"), rows))


if __name__ == "__main__":
    main()
