"""Jobs from files, by numbers and by graphs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from overlap_sched import EXAMPLE
from overlap_sched.cost.cluster import cluster_text, read_cluster
from overlap_sched.errors import PipelineError
from overlap_sched.judge.validate import measure, peak_memory
from overlap_sched.options import Options
from overlap_sched.pipeline.action import Pair, PipelineSchedule, backward, forward
from overlap_sched.pipeline.compare import LEAST, PlannedPipeline, left_bytes, plan_pipeline, with_room
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs, Orderer, graph_block, left_by
from overlap_sched.pipeline.greedy import PipelinePolicy, greedy_schedule
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink
from overlap_sched.pipeline.job_file import parse_job
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.layout import ONE_EACH, StageLayout
from overlap_sched.pipeline.named import NAMED, one_f_one_b
from overlap_sched.pipeline.replay import pipeline_peaks, replay_pipeline
from overlap_sched.problem import Group, Kind, Node, Order, Problem, Storage
from overlap_sched.scheduler.driver import schedule
from tests.support.pipeline_judge import measure_pipeline
from tests.support.pipelines import uniform

TWO = """
format = "overlap-pipeline/1"
ranks = 1
micro_batches = 2
[[stage]]
forward = { problem = "forward", output = "1B" }
backward = { problem = "backward", output_node = "dx" }
"""


def exchange(name: str, links: int = 2) -> Problem:
    """A chain of 10 us of compute, then 10 us of an all_to_all whose result the next compute needs; 4 bytes each."""
    nodes = [Node("x", Kind.INPUT, alloc=(0,))]
    storages = [Storage(4)]
    for k in range(links):
        last, made = len(nodes) - 1, len(storages)
        nodes.append(Node(f"mm{k}", Kind.COMPUTE, (last,), (made,), (made - 1,), 10.0))
        nodes.append(Node(f"a2a{k}", Kind.COLLECTIVE, (last + 1,), (made + 1,), (made,), 10.0, "all_to_all", "ep"))
        nodes.append(Node(f"wait{k}", Kind.WAIT, (), (), (made, made + 1), collective=last + 2))
        storages += [Storage(4), Storage(4)]
    nodes.append(Node("output", Kind.OUTPUT, (len(nodes) - 1,), (), (len(storages) - 1,)))
    return Problem(name, tuple(nodes), tuple(storages), {"ep": Group(8, True)})


def two_halves() -> Problem:
    """30 bytes of what forward has saved; ``dx`` needs 20 of them, ``dw`` the others and 5 bytes of ``dx``'s way."""
    return Problem(
        "backward",
        (
            Node("w", Kind.INPUT, alloc=(0,)),
            Node("a", Kind.INPUT, alloc=(1,)),
            Node("b", Kind.INPUT, alloc=(2,)),
            Node("way", Kind.COMPUTE, (0, 1), (3,), (0, 1), 2.0),
            Node("dw", Kind.COMPUTE, (2, 3), (4,), (2, 3), 7.0),
            Node("dx", Kind.COMPUTE, (3,), (5,), (3,), 3.0),
            Node("output", Kind.OUTPUT, (4, 5), (), (4, 5)),
        ),
        (Storage(100, pinned=True), Storage(20), Storage(10), Storage(5), Storage(50), Storage(1)),
    )


def by_default(headroom: int | str = 0) -> Orderer:
    def order(problem: Problem) -> Order:
        return schedule(problem, Options(headroom=headroom)).order

    return order


def job_of(graphs: JobGraphs, text: str = TWO) -> PipelineJob:
    return parse_job(text, "job.toml", Path(), graphs)


def test_halves_of_one_graph() -> None:
    stage = job_of(JobGraphs(lambda source: two_halves()), TWO + 'saved = "30B"').stages[0]
    assert stage.backward == PipelineBlock(
        12.0, 65 - 30, 0, graph="backward", counted_bytes=130
    )  # b, way and dw at the peak
    assert stage.input_gradient is not None
    assert stage.weight_gradient is not None
    assert (stage.input_gradient.time_us, stage.weight_gradient.time_us) == (5.0, 7.0)
    assert stage.kept_bytes == 10 + 5 + 1  # b, way and, as its output is not said, dx
    assert stage.splits


NO_OUTPUT = "but the graph has no such node, or nothing besides: name the one that makes the gradient to be sent."


@pytest.mark.parametrize(
    ("backward_is", "why"),
    [
        ('problem = "backward", output_node = "dy"', f"is 'dy', {NO_OUTPUT}"),
        ('problem = "backward", output_node = "output"', f"is 'output', {NO_OUTPUT}"),
        (
            'problem = "backward", output_node = "dx" }\n'
            'input_gradient = { time = "1us" }\nweight_gradient = { time = "1us"',
            "makes halves of backward, which are given: leave one out.",
        ),
        ('time = "1us", output_node = "dx"', "names a node of a graph: give the graph, too (problem)."),
    ],
)
def test_an_output_node_that_is_none(backward_is: str, why: str) -> None:
    text = TWO.replace('problem = "backward", output_node = "dx"', backward_is)
    with pytest.raises(PipelineError) as caught:
        job_of(JobGraphs(lambda source: two_halves()), text)
    assert str(caught.value) == f"job.toml: stage[0].backward.output_node {why}"


@pytest.mark.parametrize("parameters", ["", 'parameters = "0B"\n', 'parameters = "60B"\n'])
def test_a_pair_counts_what_is_pinned_once(parameters: str) -> None:
    """Parameters are static; the rest of what is pinned is saved, or the pair's."""
    graphs = JobGraphs(lambda source: two_halves(), by_default())
    text = TWO.replace(', output_node = "dx"', "") + parameters + 'saved = "30B"\n'
    job = graphs.with_pairs(job_of(graphs, text), lambda told: None)
    pair, stage = job.pairs[0, 0], job.stages[0]
    pinned = min(stage.static_bytes, 100)
    assert pair.transient_bytes == graphs.pairs["forward", "backward"].peak_bytes - 2 * pinned - 2 * 30


def test_two_chains_hide_each_others_exchanges() -> None:
    """One behind the other 80 us, 40 of them exposed; interleaved each computes while the other communicates."""
    graphs = JobGraphs(lambda source: exchange(source.path.name), by_default("100B"))
    told: list[str] = []
    job = graphs.with_pairs(job_of(graphs, TWO.replace(', output_node = "dx"', "")), told.append)
    assert told == ["interleaving graphs, pair 1 of 1"]
    pair = graphs.pairs["forward", "backward"]
    assert (pair.before.timeline.step_us, pair.before.timeline.exposed_us) == (80.0, 40.0)
    assert job.pairs[0, 0].time_us == pair.ordered.timeline.step_us == 50.0
    assert pair.ordered.timeline.exposed_us == job.pairs[0, 0].exposed_us == 10.0
    assert (job.stages[0].forward.time_us, job.stages[0].forward.exposed_us) == (40.0, 20.0)
    named = {one.name: plan_pipeline(job, one) for one in NAMED[:2]}
    assert named["1f1b"].inside_us == (4 * 20.0,)
    paired = PipelineSchedule("", ((forward(0, 0), Pair(forward(0, 1), backward(0, 0)), backward(0, 1)),))
    assert replace(named["1f1b"], replay=replay_pipeline(job, paired)).inside_us == (20.0 + 10.0 + 20.0,)
    assert pair.peak_bytes <= max(pair.before.profile) + 100


def test_a_pair_holds_the_peak_of_its_graph() -> None:
    """What is pinned is static, what is saved counts by itself, the rest is the pair's."""
    graphs = JobGraphs(lambda source: two_halves() if source.path.name == "backward" else exchange("f"), by_default())
    job = graphs.with_pairs(job_of(graphs), lambda text: None)
    stage, pair = job.stages[0], graphs.pairs["forward", "backward"]
    assert job.pairs[0, 0].transient_bytes == pair.peak_bytes - 100 - 2 * stage.saved_bytes
    plan = greedy_schedule(job, [PipelinePolicy(1, 0, pairs=True)])
    assert plan is not None
    peaks = pipeline_peaks(job, replay_pipeline(job, plan))
    assert [(peak.bytes, peak.at_us) for peak in peaks] == list(measure_pipeline(job, plan).peaks)


def test_joined_stages_run_their_pairs_one_behind_the_other() -> None:
    """Forward 0 beside backward 1, then forward 1 beside backward 0."""
    pairs = {
        (0, 1): PipelineBlock(5.0, 7, exposed_us=1.0),
        (1, 0): PipelineBlock(6.0, 9, exposed_us=2.0),
        (0, 0): PipelineBlock(1.0, 1),
    }
    job = replace(uniform(1, 2, 2), pairs=pairs)
    assert ONE_EACH.put(job).pairs == {
        (0, 0): PipelineBlock(11.0, 8, exposed_us=3.0)
    }  # forward 1 has saved its byte when it ends
    assert ONE_EACH.put(replace(job, pairs={(0, 1): pairs[0, 1]})).pairs == {}


def planned(job: PipelineJob, room: int = 0) -> PlannedPipeline:
    """Two forwards, then their backwards, with so much left on each rank."""
    one = plan_pipeline(replace(job, memory_limit_bytes=None), NAMED[0])
    limits = tuple(peak.bytes + room for peak in one.peaks)
    return plan_pipeline(replace(job, memory_limit_bytes=limits), NAMED[0])


def test_what_is_left_is_a_power_of_two() -> None:
    job = uniform(2, 2)
    assert [left_bytes(planned(job, room)) for room in (0, LEAST - 1, LEAST, 3 * LEAST)] == [0, 0, LEAST, 2 * LEAST]
    assert left_bytes(plan_pipeline(job, NAMED[0])) == 0


def test_graphs_get_what_is_left_where_that_is_shorter_and_fits() -> None:
    before, asked = planned(uniform(2, 2), LEAST), list[int]()

    def plan(f: float, static: int = 0) -> PlannedPipeline:
        def job_with(room: int) -> PipelineJob:
            asked.append(room)
            stage = uniform(2, 2, f=f).stages[0]
            return replace(before.job, stages=(replace(stage, static_bytes=static),) * 2)

        return with_room(before, job_with, lambda job: plan_pipeline(job, NAMED[0]))

    assert plan(0.5).replay.step_us < before.replay.step_us
    assert asked == [LEAST]
    assert plan(1.0) is before
    assert plan(0.5, 2 * LEAST) is before  # does not fit
    full = planned(uniform(2, 2))
    assert with_room(full, lambda room: full.job, lambda job: pytest.fail("nothing is left")) is full


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_list_scheduler_makes_pairs_where_they_save_time(chunks: int) -> None:
    """Within the limit, and the judge agrees."""
    job = replace(uniform(3, 8, chunks), pair_factor=0.6, memory_limit_bytes=(12,) * 3)
    placed = StageLayout("looped", chunks).put(job)
    policies = [PipelinePolicy(ahead, 2, pairs=pairs) for ahead in (0, 2, 8) for pairs in (False, True)]
    found = {policy: greedy_schedule(placed, [policy] * 3) for policy in policies}
    steps: dict[bool, list[float]] = {False: [], True: []}
    for policy, plan in found.items():
        assert plan is not None
        assert violation(placed, plan) is None
        judged = measure_pipeline(placed, plan)
        assert max(peak for peak, _ in judged.peaks) <= 12
        steps[policy.pairs].append(judged.step_us)
        if policy.ahead:
            assert any(isinstance(item, Pair) for order in plan.orders for item in order) == policy.pairs
    assert min(steps[True]) < min(steps[False])
    dear = replace(placed, pair_factor=1.0)
    assert greedy_schedule(dear, [policies[1]] * 3) == greedy_schedule(dear, [policies[0]] * 3)


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
    huge = msgspec.structs.replace(read_cluster("dgx-h100"), ranks_per_node=2**40)  # of which two have links
    (tmp_path / "huge.toml").write_text(cluster_text(huge))
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
        (
            HEAD + STAGE.replace('"1ms"', "1"),
            'stage[0].forward.time: 1 is not a number with a unit that fits. Write "12us".',
        ),
        (HEAD + STAGE.replace('"3kB"', '"3"'), "stage[0].saved: '3' is a number without a unit. Did you mean 3GiB?"),
        (HEAD + STAGE.replace("saved", "savd"), "stage[0]: object contains unknown field savd. Did you mean 'saved'?"),
        (HEAD + STAGE + 'input_gradient = { time = "1us" }', "stage[0].weight_gradient is missing"),
        (HEAD + STAGE.replace('time = "2ms"', ""), "stage[0].backward has neither a time nor a graph"),
        (HEAD + STAGE.replace('"2ms"', '"2ms", problem = "b"'), "stage[0].backward has a graph, which says its time"),
        (HEAD + STAGE.replace('"1ms"', '"1ms", output_node = "y"'), "which only backward has"),
        (HEAD + 'memory_limit = ["1GB"]\n' + STAGE, "memory_limit lists 1 sizes for 2 ranks"),
        (HEAD + 'cluster = "dgx-h100"\nranks_per_node = 9\n' + STAGE, "a node of dgx-h100 has 8."),
        (HEAD + STAGE + '[[links]]\nfrom = 0\nto = 2\nbandwidth = "1GB/s"', "from rank 0 to rank 2; ranks are 0 to 1."),
        (
            HEAD + STAGE.replace("= 2", "= 333334"),
            "333334 stages and 4 micro-batches make 4,000,008 actions",
        ),
        (HEAD + STAGE.replace("= 2", "= 1" + "0" * 5000), "an integer has more than 64 bits (at line 6)."),
        (HEAD + STAGE + 'recompute = "yes"', "stage[0].recompute: expected bool | object, got str."),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    said = refused(text)
    assert said.startswith("job.toml: ")
    assert why in said
