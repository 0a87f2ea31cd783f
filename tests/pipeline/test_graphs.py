"""Jobs from files, by numbers and by graphs."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from overlap_sched.cost.cluster import cluster_text, read_cluster
from overlap_sched.errors import PipelineError
from overlap_sched.judge.validate import measure, peak_memory
from overlap_sched.options import Options
from overlap_sched.pipeline.action import Pair, PipelineSchedule, backward, forward
from overlap_sched.pipeline.blocks import BLOCKS, block_orders
from overlap_sched.pipeline.compare import LEAST, PlannedPipeline, left_bytes, plan_pipeline, with_room
from overlap_sched.pipeline.graphs import GraphSource, JobGraphs, Orderer, graph_block
from overlap_sched.pipeline.greedy import greedy_schedule
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

HEAD = 'format = "overlap-pipeline/1"\nranks = 2\nmicro_batches = 4\n'
TWO = """
format = "overlap-pipeline/1"
ranks = 1
micro_batches = 2
[[stage]]
forward = { problem = "forward", output = "1B" }
backward = { problem = "backward", output_node = "dx" }
"""
WHOLE = TWO.replace(', output_node = "dx"', "")
STAGE = """
[[stage]]
repeat = 2
forward = { time = "1ms", transient = "1kB", output = "2kB" }
backward = { time = "2ms" }
saved = "3kB"
parameters = "4kB"
"""


def exchange(name: str, links: int = 2) -> Problem:
    """A chain of 10 us of compute, then 10 us of an all_to_all whose result the next compute needs; 4 bytes each."""
    nodes, storages = [Node("x", Kind.INPUT, alloc=(0,))], [Storage(4)]
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
    nodes = (
        Node("w", Kind.INPUT, alloc=(0,)),
        Node("a", Kind.INPUT, alloc=(1,)),
        Node("b", Kind.INPUT, alloc=(2,)),
        Node("way", Kind.COMPUTE, (0, 1), (3,), (0, 1), 2.0),
        Node("dw", Kind.COMPUTE, (2, 3), (4,), (2, 3), 7.0),
        Node("dx", Kind.COMPUTE, (3,), (5,), (3,), 3.0),
        Node("output", Kind.OUTPUT, (4, 5), (), (4, 5)),
    )
    return Problem("backward", nodes, (Storage(100, pinned=True), *map(Storage, (20, 10, 5, 50, 1))))


def by_default(headroom: int | str = 0) -> Orderer:
    def order(problem: Problem) -> Order:
        return schedule(problem, Options(headroom=headroom)).order

    return order


def read(source: GraphSource) -> Problem:
    return two_halves() if source.name == "backward" else exchange(source.name)


def parsed(text: str, graphs: JobGraphs | None = None) -> PipelineJob:
    return parse_job(text, "job.toml", Path("jobs"), graphs or JobGraphs(read))


def refused(text: str) -> str:
    with pytest.raises(PipelineError) as caught:
        parsed(text)
    return str(caught.value)


def test_halves_of_one_graph() -> None:
    stage = parsed(TWO + 'saved = "30B"').stages[0]
    # b, way and dw at the peak
    assert stage.backward == PipelineBlock(12.0, 65 - 30, 0, graph="backward", counted_bytes=130)
    assert stage.input_gradient is not None
    assert stage.weight_gradient is not None
    assert (stage.input_gradient.time_us, stage.weight_gradient.time_us) == (5.0, 7.0)
    assert stage.kept_bytes == 10 + 5  # b and way, not dx, which is live until it is sent
    assert stage.input_gradient.sent_bytes is None
    again = parsed(WHOLE.replace("= 1\n", "= 2\n", 1) + "repeat = 2").stages[1]  # dx alone is as large as what is sent
    assert (again.kept_bytes, again.backward.output_bytes, again.splits) == (15, 1, True)


@pytest.mark.parametrize("parameters", [100, 60, 0])
def test_a_pair_holds_the_peak_of_its_graph_and_counts_what_is_pinned_once(parameters: int) -> None:
    """Parameters are static; the rest of what is pinned is saved, or the pair's; what is saved counts by itself."""
    graphs = JobGraphs(read, by_default())
    text = WHOLE + f'parameters = "{parameters}B"\nsaved = "30B"\n'
    job = graphs.with_pairs(parsed(text, graphs), lambda told: None)
    pair = graphs.pairs["forward", "backward"]
    assert job.pairs[0, 0].transient_bytes == max(pair.ordered.profile) - parameters - 2 * 30
    plan = greedy_schedule(job, block_orders(job, BLOCKS[0]), pairs=True)
    assert plan is not None
    peaks = pipeline_peaks(job, replay_pipeline(job, plan))
    assert [(peak.bytes, peak.at_us) for peak in peaks] == list(measure_pipeline(job, plan).peaks)


def test_two_chains_hide_each_others_exchanges() -> None:
    """One behind the other 80 us, 40 of them exposed; interleaved each computes while the other communicates."""
    graphs = JobGraphs(lambda source: exchange(source.name), by_default("100B"))
    told: list[str] = []
    job = graphs.with_pairs(parsed(WHOLE, graphs), told.append)
    assert told == ["interleaving graphs, pair 1 of 1"]
    pair, stage = graphs.pairs["forward", "backward"], job.stages[0]
    assert (pair.before.timeline.step_us, pair.before.timeline.exposed_us) == (80.0, 40.0)
    assert job.pairs[0, 0].time_us == pair.ordered.timeline.step_us == 50.0
    assert pair.ordered.timeline.exposed_us == job.pairs[0, 0].exposed_us == 10.0
    assert (stage.forward.time_us, stage.forward.exposed_us) == (40.0, 20.0)
    plan = plan_pipeline(job, NAMED[1])
    assert plan.inside_us == (4 * 20.0,)
    paired = PipelineSchedule("", ((forward(0, 0), Pair(forward(0, 1), backward(0, 0)), backward(0, 1)),))
    assert replace(plan, replay=replay_pipeline(job, paired)).inside_us == (20.0 + 10.0 + 20.0,)
    assert max(pair.ordered.profile) <= max(pair.before.profile) + 100


def test_joined_stages_run_their_pairs_one_behind_the_other() -> None:
    """Forward 0 beside backward 1, then forward 1 beside backward 0; forward 1 has saved its byte when it ends."""
    pairs = {
        (0, 1): PipelineBlock(5.0, 7, exposed_us=1.0),
        (1, 0): PipelineBlock(6.0, 9, exposed_us=2.0),
        (0, 0): PipelineBlock(1.0, 1),
    }
    job = replace(uniform(1, 2, 2), pairs=pairs)
    assert ONE_EACH.put(job).pairs == {(0, 0): PipelineBlock(11.0, 8, exposed_us=3.0)}
    assert ONE_EACH.put(replace(job, pairs={(0, 1): pairs[0, 1]})).pairs == {}


def planned(job: PipelineJob, room: int = 0) -> PlannedPipeline:
    """Two forwards, then their backwards, with so much left on each rank."""
    limits = tuple(peak.bytes + room for peak in plan_pipeline(job, NAMED[0]).peaks)
    return plan_pipeline(replace(job, memory_limit_bytes=limits), NAMED[0])


def test_graphs_get_what_is_left_where_that_is_shorter_and_fits() -> None:
    """The greatest power of two in it."""
    job = uniform(2, 2)
    assert [left_bytes(planned(job, room)) for room in (0, LEAST - 1, LEAST, 3 * LEAST)] == [0, 0, LEAST, 2 * LEAST]
    assert left_bytes(plan_pipeline(job, NAMED[0])) == 0
    before, asked = planned(job, LEAST), list[int]()

    def plan(f: float, static: int = 0) -> PlannedPipeline:
        def plan_with(room: int) -> PlannedPipeline:
            asked.append(room)
            stage = uniform(2, 2, f=f).stages[0]
            return plan_pipeline(replace(before.job, stages=(replace(stage, static_bytes=static),) * 2), NAMED[0])

        return with_room(before, plan_with)

    assert plan(0.5).replay.step_us < before.replay.step_us
    assert asked == [LEAST]
    assert plan(1.0) is before
    assert plan(0.5, 2 * LEAST) is before  # does not fit


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_list_scheduler_makes_pairs_where_they_save_time(chunks: int) -> None:
    """Within the limit, and the judge agrees."""
    job = replace(uniform(3, 8, chunks), pair_factor=0.6, memory_limit_bytes=(12,) * 3)
    placed, steps = StageLayout("looped", chunks).put(job), dict[bool, float]()
    for pairs in (False, True):
        wanted = block_orders(placed, BLOCKS[0])
        plan = greedy_schedule(placed, wanted, pairs=pairs)
        assert plan is not None
        assert violation(placed, plan) is None
        judged = measure_pipeline(placed, plan)
        assert max(peak for peak, _ in judged.peaks) <= 12
        steps[pairs] = judged.step_us
        assert any(isinstance(item, Pair) for order in plan.orders for item in order) == pairs
        dear = greedy_schedule(replace(placed, pair_factor=1.0), wanted, pairs=pairs)
        assert dear is not None
        assert not any(isinstance(item, Pair) for order in dear.orders for item in order)
    assert steps[True] < steps[False]


def test_by_numbers() -> None:
    job = parsed(HEAD + STAGE)
    assert (job.name, job.ranks, job.rank_of, job.micro_batches) == ("jobs", 2, (0, 1), 4)
    first, last = job.stages
    assert first.forward == PipelineBlock(1000.0, 1000, 2000)
    assert (first.saved_bytes, first.static_bytes, first.splits) == (3000, 4000, False)
    assert (first.backward.output_bytes, last.backward.output_bytes) == (0, 2000)  # as much as it has received
    assert (job.link, job.memory_limit_bytes) == (PipelineLink(), None)
    halves = STAGE.replace(
        'backward = { time = "2ms" }',
        'input_gradient = { time = "1ms", transient = "1kB", output = "7B" }\n'
        'weight_gradient = { time = "500us", transient = "5kB" }\nkept = "2kB"\n'
        'gradients = "5kB"\noptimizer = "6kB"\nreduce = { time = "3us" }\nstep = { time = "4us", transient = "9kB" }',
    )
    stage = parsed(HEAD + halves).stages[0]
    assert stage.backward == PipelineBlock(1500.0, 2000 + 5000 - 3000, 7)
    assert (stage.splits, stage.static_bytes) == (True, 15_000)
    assert (stage.reduce, stage.step) == (PipelineBlock(3.0), PipelineBlock(4.0, 9000))


def test_links_and_limits(tmp_path: Path) -> None:
    link = '[link]\nbandwidth = "1MB/s"\nlatency = "5us"\n[[links]]\nfrom = 1\nto = 0\nbandwidth = "2MB/s"\n'
    job = parsed(HEAD + 'memory_limit = ["1GB", "2GB"]\npair = 0.5\n' + STAGE + link)
    assert (job.link, job.links) == (PipelineLink(5.0, 1e6), {(1, 0): PipelineLink(0.0, 2e6)})
    assert (job.memory_limit_bytes, job.pair_factor) == ((10**9, 2 * 10**9), 0.5)
    assert parsed(HEAD + 'memory_limit = "1GiB"\n' + STAGE).memory_limit_bytes == (2**30, 2**30)
    alone = parsed(HEAD + 'cluster = "dgx-h100"\n' + STAGE)
    assert (alone.link.bytes_per_s, alone.links) == (50e9, {})
    near = parsed(HEAD + 'cluster = "dgx-h100"\nranks_per_node = 2\n' + STAGE)
    assert (near.link, set(near.links)) == (alone.link, {(0, 1), (1, 0)})
    assert near.links[0, 1].bytes_per_s > alone.link.bytes_per_s
    huge = msgspec.structs.replace(read_cluster("dgx-h100"), ranks_per_node=2**40)  # of which two have links
    (tmp_path / "huge.toml").write_text(cluster_text(huge))
    text = HEAD + f'cluster = "{tmp_path / "huge.toml"}"\nranks_per_node = {2**40}\n'
    assert parsed(text + STAGE).links == near.links


def test_by_graphs() -> None:
    asked = list[GraphSource]()

    def noted(source: GraphSource) -> Problem:
        asked.append(source)
        return read(source)

    halves = (
        '\n[[stage]]\nforward = { problem = "forward", output = "1B" }\n'
        'input_gradient = { problem = "backward", output = "10B" }\nweight_gradient = { problem = "weights" }\n'
        'parameters = "100B"'
    )
    text = HEAD + 'cluster = "dgx-h100"\n[groups]\n"0" = 8\n' + halves + halves
    stage = parsed(text, JobGraphs(noted)).stages[0]
    assert asked[0] == GraphSource("forward", Path("jobs/forward"), "dgx-h100", (("0", 8),))
    assert len(asked) == 3  # each once
    assert (stage.static_bytes, stage.saved_bytes, stage.kept_bytes) == (100, 4 - 1, 51 - 10)
    f_peak, i_peak = (peak_memory(graph, graph.original_order)[0] for graph in (exchange("forward"), two_halves()))
    assert stage.forward == PipelineBlock(40.0, f_peak - 3, 1, None, "forward", 3, 20.0)
    assert stage.input_gradient == PipelineBlock(12.0, i_peak - 100 - 3, 10, None, "backward", 100 + 3)
    assert stage.weight_gradient == PipelineBlock(40.0, 0, 0, None, "weights", 51 - 10, 20.0)


def test_a_rank_that_runs_one_graph_holds_its_peak() -> None:
    back = two_halves()
    run = measure(back, back.original_order)
    whole, part = (graph_block("", back, run, most) for most in (None, 70))  # 30 bytes that are pinned are inputs
    assert (whole.time_us, whole.peak_bytes, whole.left_bytes, whole.pinned_bytes) == (12.0, 65, 51, 100)
    assert (part.peak_bytes, part.left_bytes, part.pinned_bytes) == (95, 81, 70)
    job = parsed(WHOLE.replace("= 2", "= 1") + 'saved = "30B"\nparameters = "100B"')
    (peak,) = pipeline_peaks(job, replay_pipeline(job, one_f_one_b(1, 1)))
    assert peak.bytes == peak_memory(back, back.original_order)[0] == 165


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ranks = ", "is not TOML: Invalid value"),
        ('format = "other"', "format: invalid enum value 'other'. It is one of 'overlap-pipeline/1'."),
        (HEAD, "stage is missing; write [[stage]]"),
        (HEAD.replace("ranks = 2\n", "") + STAGE, "object missing required field ranks."),
        (HEAD.replace("= 2", "= 3") + STAGE, "ranks is 3, and there are 2 stages"),
        (HEAD + STAGE.replace('"1ms"', "1"), "stage[0].forward.time: 1 is not a number with a unit that fits. Write"),
        (HEAD + STAGE.replace('"3kB"', '"3"'), "stage[0].saved: '3' is a number without a unit. Did you mean 3GiB?"),
        (HEAD + STAGE.replace("saved", "savd"), "stage[0]: object contains unknown field savd. Did you mean 'saved'?"),
        (HEAD + STAGE + 'input_gradient = { time = "1us" }', "stage[0].weight_gradient is missing"),
        (HEAD + STAGE.replace('time = "2ms"', ""), "stage[0].backward has neither a time nor a graph"),
        (HEAD + STAGE.replace('"2ms"', '"2ms", problem = "b"'), "stage[0].backward has a graph, which says its time"),
        (
            HEAD + STAGE.replace('"1ms"', '"1ms", output_node = "y"'),
            "stage[0].forward: object contains unknown field",
        ),
        (HEAD + STAGE.replace('"2ms"', '"2ms", output_node = "y"'), "output_node names a node of a graph: give"),
        (TWO.replace('"dx"', '"dy"'), "stage[0].backward.output_node is 'dy': the graph has no such node. Name what"),
        (TWO.replace('"dx"', '"output"'), "output_node is 'output': the graph has no such node. Name"),
        (TWO.replace('"dx"', '"a"') + "repeat = 2", "'a': that is an input of the graph. Name what makes"),
        (TWO.replace('"dx"', '"dw"') + "repeat = 2", "that has 50 bytes, where the stage before sends 1. Name "),
        (TWO.replace('"dx"', '"way"') + "repeat = 2", "Name what makes the gradient of the input: dx."),
        (TWO.replace('"1B"', '"2B"') + "repeat = 2", "No node makes so many: correct the output of the stage before."),
        (HEAD + STAGE + 'kept = "1B"', "stage[0].kept goes from input_gradient to weight_gradient, and there are no"),
        (HEAD + STAGE.replace("[[stage]]", "[stage]"), "stage: expected array, got object. In TOML, write [[stage]]"),
        (
            HEAD + STAGE + "pair = 1.0",
            "stage[0]: object contains unknown field pair. It belongs elsewhere in the",
        ),
        (TWO + 'input_gradient = { time = "1us" }\nweight_gradient = { time = "1us" }', "makes halves of back"),
        (HEAD + 'memory_limit = ["1GB"]\n' + STAGE, "memory_limit lists 1 sizes: give one, or one per rank (2)"),
        (HEAD + 'cluster = "dgx-h100"\nranks_per_node = 9\n' + STAGE, "dgx-h100 has 8."),
        (HEAD + STAGE + '[[links]]\nfrom = 0\nto = 2\nbandwidth = "1GB/s"', "from rank 0 to 2; ranks are 0 to 1."),
        (HEAD + STAGE.replace("= 2", "= 333334"), "4,000,008 actions, more than 1,000,000"),
        (HEAD + STAGE.replace("= 2", "= 1" + "0" * 5000), "an integer has more than 64 bits (at line 6)."),
        (HEAD + STAGE + 'recompute = "yes"', "stage[0].recompute: expected bool | object, got str."),
        (HEAD + STAGE.replace('"1ms"', '"1e30s"'), "jobs: stage 0 has 1e+36: times, sizes and factors are from 0 to"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    assert why in refused(text)
