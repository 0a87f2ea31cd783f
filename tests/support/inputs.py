"""Files that the tests of the command read: a dump, jobs of pipelines, problems, and what is none of these."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from overlap_sched import EXAMPLE, Group, Kind, Node, Problem, write_problem
from overlap_sched.problem.file import problem_bytes
from tests.judge.test_contention import two_groups
from tests.peak_memory.test_orders import chain_with_updates
from tests.support.layers import large_layers
from tests.support.sharded import sharded, whole_step

TEXTS = {
    path.name.removesuffix(".txt"): path.read_text() for path in (Path(__file__).parents[1] / "data/inputs").iterdir()
}
DUMP = TEXTS["layer.py"]
"""Backward of a layer, shortened from what ``torch._dynamo.repro.after_aot.save_graph_repro`` writes."""
HUGE = "9" * 400
ODD = (Node("\x1b[2J[red]x", Kind.COLLECTIVE, time_us=1.0, group="g"), Node("ü", Kind.WAIT, collective=0))
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "example": lambda: EXAMPLE,
    "tracker": lambda: replace(EXAMPLE, name="t", memory_model="tracker"),
    "groups": two_groups,
    "graph": lambda: sharded([[2, 2, 2]] * 4, compute_us=4.0),  # latency binds on every network
    "gathers": lambda: whole_step([16] * 4, 1.0, temporary_bytes=4000),
    "layers": lambda: large_layers(8, 20),
    "chain": lambda: chain_with_updates(6),
    "alone": lambda: Problem("alone", (Node("mm", Kind.COMPUTE, time_us=3.0),), ()),
    "hours": lambda: Problem("hours", (Node("mm", Kind.COMPUTE, time_us=1e10),), ()),
    "odd": lambda: Problem("p\x07[/x]:x:", ODD, (), {"g": Group(2, True)}),
}


def write_inputs(folder: Path) -> None:
    """Write all of them into a folder: problems as JSON."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for name, make in PROBLEMS.items():
        write_problem(make(), folder / f"{name}.json")
    (folder / "huge.json").write_text(problem_bytes(EXAMPLE).decode().replace('"us":50.0', f'"us":{HUGE}'))
    (folder / "cut.json.gz").write_bytes(gzip.compress(b'{"format": "overlap-problem/1"' * 20)[:-12])
