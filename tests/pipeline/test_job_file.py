"""Jobs from TOML: by numbers and by graphs; bad ones with one line that says what, where and what to write."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE
from overlap_sched.cost.cluster import read_cluster, write_cluster
from overlap_sched.errors import PipelineError
from overlap_sched.judge.validate import measure, peak_memory
from overlap_sched.pipeline import job_file
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs, graph_block, left_by
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink
from overlap_sched.pipeline.job_file import parse_job, read_job
from overlap_sched.pipeline.named import one_f_one_b
from overlap_sched.pipeline.replay import pipeline_peaks, replay_pipeline
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.problem.file import Limits

HEAD = 'format = "overlap-pipeline/1"\nranks = 2\nmicro_batches = 4\n'
STAGE = """
[[stage]]
repeat = 2
forward = { time = "1ms", transient = "1kB", output = "2kB" }
backward = { time = "2ms" }
saved = "3kB"
parameters = "4kB"
"""


def parsed(text: str, read: Callable[[GraphSource], Problem] = lambda source: EXAMPLE) -> PipelineJob:
    return parse_job(text, "job.toml", Path("jobs"), JobGraphs(read))


def refused(text: str) -> str:
    with pytest.raises(PipelineError) as caught:
        parsed(text)
    return str(caught.value)


def test_by_numbers() -> None:
    job = parsed(HEAD + STAGE)
    assert (job.name, job.ranks, job.rank_of, job.micro_batches) == ("jobs", 2, (0, 1), 4)
    first, last = job.stages
    assert first.forward == PipelineBlock(1000.0, 1000, 2000)
    assert (first.saved_bytes, first.static_bytes, first.splits) == (3000, 4000, False)
    assert (first.backward.output_bytes, last.backward.output_bytes) == (0, 2000)  # as much as it has received
    assert job.link == PipelineLink()
    assert job.memory_limit_bytes is None


def test_halves_make_a_whole() -> None:
    halves = STAGE.replace(
        'backward = { time = "2ms" }',
        'input_gradient = { time = "1ms", transient = "1kB", output = "7B" }\n'
        'weight_gradient = { time = "500us", transient = "5kB" }\nkept = "2kB"\n'
        'gradients = "5kB"\noptimizer = "6kB"\nreduce = { time = "3us" }\nstep = { time = "4us", transient = "9kB" }',
    )
    stage = parsed(HEAD + halves).stages[0]
    assert stage.backward == PipelineBlock(1500.0, 2000 + 5000 - 3000, 7)
    assert stage.splits
    assert stage.static_bytes == 15_000
    assert (stage.reduce, stage.step) == (PipelineBlock(3.0), PipelineBlock(4.0, 9000))


def test_links_and_limits() -> None:
    link = '[link]\nbandwidth = "1MB/s"\nlatency = "5us"\n[[links]]\nfrom = 1\nto = 0\nbandwidth = "2MB/s"\n'
    job = parsed(HEAD + 'memory_limit = ["1GB", "2GB"]\npair = 0.5\n' + STAGE + link)
    assert job.link == PipelineLink(5.0, 1e6)
    assert job.links == {(1, 0): PipelineLink(0.0, 2e6)}
    assert (job.memory_limit_bytes, job.pair_factor) == ((10**9, 2 * 10**9), 0.5)
    assert parsed(HEAD + 'memory_limit = "1GiB"\n' + STAGE).memory_limit_bytes == (2**30, 2**30)


def test_links_of_a_cluster(tmp_path: Path) -> None:
    alone = parsed(HEAD + 'cluster = "dgx-h100"\n' + STAGE)
    assert (alone.link.bytes_per_s, alone.links) == (50e9, {})
    near = parsed(HEAD + 'cluster = "dgx-h100"\nranks_per_node = 2\n' + STAGE)
    assert near.link == alone.link
    assert set(near.links) == {(0, 1), (1, 0)}
    assert near.links[0, 1].bytes_per_s > alone.link.bytes_per_s
    huge = replace(read_cluster("dgx-h100"), ranks_per_node=2**40)  # of which two have links
    write_cluster(huge, tmp_path / "huge.toml")
    text = HEAD + f'cluster = "{tmp_path / "huge.toml"}"\nranks_per_node = {2**40}\n'
    assert parsed(text + STAGE).links == near.links


def graphs() -> dict[str, Problem]:
    """Forward, input gradient and weight gradient of one linear layer.

    100 bytes of weight, 10 of input and of output; the input gradient leaves 3 more for the weights.
    """
    node, kind = Node, Kind
    ahead = (
        node("w", kind.INPUT, alloc=(0,)),
        node("x", kind.INPUT, alloc=(1,)),
        node("h", kind.COMPUTE, (0, 1), (3,), (0, 1), 5.0),
        node("y", kind.COMPUTE, (2,), (2,), (3,), 7.0),
        node("output", kind.OUTPUT, (3,), (), (1, 2)),
    )
    sizes = (Storage(100, pinned=True), Storage(10), Storage(10), Storage(40))
    back = (
        node("w", kind.INPUT, alloc=(0,)),
        node("x", kind.INPUT, alloc=(1,)),
        node("dy", kind.INPUT, alloc=(2,)),
        node("dx", kind.COMPUTE, (0, 2), (3,), (0, 2), 6.0),
        node("left", kind.COMPUTE, (1, 2), (4,), (1, 2), 1.0),
        node("output", kind.OUTPUT, (3, 4), (), (3, 4)),
    )
    back_sizes = (Storage(100, pinned=True), Storage(10), Storage(10), Storage(10), Storage(3))
    weights = (
        node("left", kind.INPUT, alloc=(0,)),
        node("dw", kind.COMPUTE, (0,), (1,), (0,), 9.0),
        node("output", kind.OUTPUT, (1,), (), (1,)),
    )
    return {
        "forward.json": Problem("forward", ahead, sizes),
        "back.json": Problem("back", back, back_sizes),
        "weights.json": Problem("weights", weights, (Storage(3), Storage(100))),
    }


GRAPHS = """
[[stage]]
forward = { problem = "forward.json", output = "10B" }
input_gradient = { problem = "back.json", output = "10B" }
weight_gradient = { problem = "weights.json" }
"""


def test_by_graphs() -> None:
    made, asked = graphs(), []

    def read(source: GraphSource) -> Problem:
        asked.append(source)
        return made[source.path.name]

    text = HEAD.replace("ranks = 2", "ranks = 1").replace("= 4", "= 1") + 'cluster = "dgx-h100"\n[groups]\n"0" = 8\n'
    job = parsed(text + GRAPHS + GRAPHS, read)
    assert asked[0] == GraphSource("forward.json", Path("jobs/forward.json"), "dgx-h100", (("0", 8),))
    assert len(asked) == 3  # each once
    stage = job.stages[0]
    assert (stage.static_bytes, stage.saved_bytes, stage.kept_bytes) == (100, 10, 3)
    assert (stage.forward.time_us, stage.input_gradient, stage.weight_gradient) == (
        12.0,
        PipelineBlock(7.0, 23, 10, graph="back.json", counted_bytes=110),
        PipelineBlock(9.0, 100, graph="weights.json", counted_bytes=3),
    )
    whole = 100 + 10 + stage.forward.transient_bytes
    assert whole == peak_memory(made["forward.json"], made["forward.json"].original_order)[0]


def test_a_rank_that_runs_one_graph_holds_its_peak() -> None:
    made = graphs()
    ahead = made["forward.json"]
    run = measure(ahead, ahead.original_order)
    forward = graph_block("", ahead, run)
    assert (forward.time_us, forward.peak_bytes, forward.left_bytes, forward.pinned_bytes) == (12.0, 60, 20, 100)
    assert left_by(forward, 10) == 10
    part = graph_block("", ahead, run, 70)  # 30 bytes that are pinned are no parameters: saved each time
    assert (part.peak_bytes, part.left_bytes, part.pinned_bytes) == (90, 50, 70)
    text = HEAD.replace("ranks = 2", "ranks = 1").replace("= 4", "= 1") + GRAPHS
    job = parsed(text, lambda source: made[source.path.name])
    peak = pipeline_peaks(job, replay_pipeline(job, one_f_one_b(1, 1)))[0]
    most = max(peak_memory(problem, problem.original_order)[0] for problem in made.values())
    assert peak.bytes == 100 + max(most - 100, 103) == 203  # the weight gradient's graph does not hold the weight


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ranks = ", "is not TOML: Invalid value"),
        ('format = "other"', "format: invalid enum value 'other'. It is one of 'overlap-pipeline/1'."),
        (HEAD, "stage is missing; write [[stage]]"),
        (HEAD.replace("ranks = 2\n", "") + STAGE, "object missing required field ranks."),
        (HEAD.replace("= 2", "= 3") + STAGE, "ranks is 3, and there are 2 stages"),
        (HEAD + STAGE.replace('"1ms"', "1"), 'stage[0].forward.time: 1 has no unit. Write "12us".'),
        (HEAD + STAGE.replace('"3kB"', '"3"'), "stage[0].saved: '3' is a number without a unit. Did you mean 3GiB?"),
        (HEAD + STAGE.replace('"3kB"', '"3 parsec"'), "stage[0].saved: '3 parsec' is no size."),
        (HEAD + STAGE.replace("saved", "savd"), "stage[0]: object contains unknown field savd. Did you mean 'saved'?"),
        (HEAD + STAGE.replace("backward", "backwards"), "field backwards. Did you mean 'backward'?"),
        (HEAD + STAGE + 'input_gradient = { time = "1us" }', "stage[0].weight_gradient is missing"),
        (HEAD + STAGE.replace('time = "2ms"', ""), "stage[0].backward has neither a time nor a graph"),
        (HEAD + STAGE.replace('"2ms"', '"2ms", problem = "b"'), "stage[0].backward has a graph, which says its time"),
        (HEAD + STAGE.replace('"1ms"', '"1ms", output_node = "y"'), "which only backward has"),
        (HEAD + 'memory_limit = ["1GB"]\n' + STAGE, "memory_limit lists 1 sizes for 2 ranks"),
        (HEAD + 'memory_limit = "50%"\n' + STAGE, "memory_limit: '50%' is no size"),
        (HEAD + 'cluster = "dgx-h100"\nranks_per_node = 9\n' + STAGE, "a node of dgx-h100 has 8."),
        (HEAD + STAGE + '[[links]]\nfrom = 0\nto = 2\nbandwidth = "1GB/s"', "from rank 0 to rank 2; ranks are 0 to 1."),
        (HEAD + STAGE.replace("= 2", "= 333334"), "stage: repeat makes more than 333,333 stages."),
        (HEAD + STAGE.replace("= 2", "= 1" + "0" * 5000), "an integer has more than 64 bits (at line 6)."),
        ("a." * 20_000 + "a = 1\n" + HEAD + STAGE, "a key has more than 32 parts (at line 1)."),
        (HEAD + STAGE + 'recompute = "yes"', "stage[0].recompute: expected bool | object, got str."),
        (HEAD + STAGE + 'recompute = { time = "1" }', "stage[0].recompute.time: '1' has no unit."),
        (HEAD + STAGE + 'recompute = { save = "1B" }', "stage[0].recompute: object contains unknown field save."),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    said = refused(text)
    assert said.startswith("job.toml: ")
    assert why in said


def test_what_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "_StageReader", None)  # no stage is made of what is too much
    for batches, stages in (200_000, 2), (4, 300_000):
        with pytest.raises(PipelineError) as caught:
            parsed(HEAD.replace("= 4", f"= {batches}") + STAGE.replace("= 2", f"= {stages}"))
        assert str(caught.value) == (
            f"jobs: {stages} stages and {batches} micro-batches make {3 * batches * stages:,} actions, more than "
            "1,000,000. Plan fewer micro-batches: the steady state repeats."
        )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    with pytest.raises(PipelineError) as missing:
        read_job(path, JobGraphs(lambda source: EXAMPLE))
    assert str(missing.value) == f"{path}: cannot be read (No such file or directory). Name a TOML file of a job."
    path.write_bytes(b"\xff")
    with pytest.raises(PipelineError) as binary:
        read_job(path, JobGraphs(lambda source: EXAMPLE), Limits())
    assert str(binary.value) == f"{path}: is not text. A job is TOML in UTF-8."
