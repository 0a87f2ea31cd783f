"""What is measured on a GPU, without one: results, bytes and the replay of requests, on the CPU."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from llama_repro.capture.configs import find_config  # noqa: E402
from llama_repro.capture.trace import captured  # noqa: E402
from llama_repro.gpu.day import Row, main  # noqa: E402
from llama_repro.gpu.measure import replay_requests  # noqa: E402
from llama_repro.gpu.program import Program, emulate, live_bytes, random_inputs, same_bits  # noqa: E402
from llama_repro.gpu.streams import EmulatedStreams  # noqa: E402
from overlap_sched.fx import lift  # noqa: E402
from overlap_sched.judge.validate import memory_profile  # noqa: E402
from overlap_sched.options import Options  # noqa: E402
from overlap_sched.problem import Kind  # noqa: E402
from overlap_sched.scheduler.driver import schedule  # noqa: E402

CPU = torch.device("cpu")
MIB = 2**20


def event(action: str, addr: int, size: int, stream: int = 0) -> dict[str, object]:
    return {"action": action, "addr": addr, "size": size, "stream": stream}


HISTORY = [
    event("free_completed", 1, 512),  # from before
    event("segment_alloc", 0, 2 * MIB),
    event("alloc", 100, 1000),
    event("segment_alloc", 4 * MIB, 20 * MIB),
    event("alloc", 200, 3 * MIB),
    event("alloc", 300, 4 * MIB),
    event("segment_alloc", 40 * MIB, 14 * MIB),
    event("alloc", 400, 13 * MIB + 1),
    event("free_requested", 300, 4 * MIB),
    event("free_completed", 300, 4 * MIB),
    event("alloc", 500, 4 * MIB),
    event("segment_alloc", 80 * MIB, 20 * MIB, 7),
    event("alloc", 600, 2 * MIB, 7),
    event("free_completed", 200, 3 * MIB),
    event("segment_free", 80 * MIB, 20 * MIB, 7),
]
"""Small blocks have segments of 2 MiB, those up to 10 MiB of 20, larger ones their own; a stream has its own pool."""


@pytest.fixture(scope="module", params=["tiny", "tiny-2d"])
def lifted(request):
    """A backward graph of one layer, lifted."""
    with captured(replace(find_config(request.param), layers=1)) as graphs:
        return lift(graphs.backward, name=request.param)


def run(program, observe=None):
    return program.run(random_inputs(program._inputs, CPU, tokens=512), EmulatedStreams(), observe)


@pytest.mark.slow
@pytest.mark.parametrize("headroom", [0, "1GiB"])
def test_bytes_alive_are_those_predicted_at_every_step(lifted, headroom):
    problem = lifted.problem
    order = schedule(problem, Options(headroom=headroom, strict=True)).order
    assert order != problem.original_order
    predicted = {lifted.nodes[v]: live for v, live in zip(order, memory_profile(problem, order), strict=True)}
    counted = {}
    run(Program(lifted, order), lambda node, env: counted.update({node: live_bytes(env.values())}))
    assert len(counted) == sum(node.kind is not Kind.INPUT for node in problem.nodes)
    assert counted == {node: predicted[node] for node in counted}


@pytest.mark.slow
def test_another_order_computes_the_same_bits(lifted):
    problem = lifted.problem
    original = run(Program(lifted, problem.original_order))
    assert same_bits(run(Program(lifted, schedule(problem, Options(headroom="1GiB")).order)), original)
    assert all(torch.isfinite(gradient).all() for gradient in original if gradient is not None)


@pytest.mark.slow
def test_an_order_that_reads_before_the_wait_is_found_out(lifted):
    """The copy is made at the wait, so a user that runs before it sees what was there."""
    program = Program(lifted, lifted.problem.original_order)
    original = run(program)
    waits_that_do_not = {Kind.WAIT: Kind.COMPUTE}
    program.steps = tuple(step._replace(kind=waits_that_do_not.get(step.kind, step.kind)) for step in program.steps)
    assert not same_bits(run(program), original)


def test_collectives_are_emulated_by_copies():
    shard, whole = torch.arange(3.0), torch.empty(6)
    emulate(shard, whole)
    assert whole.tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    part = torch.empty(2)
    emulate(whole, part)
    assert part.tolist() == [0.0, 1.0]


def test_copies_of_a_group_are_made_in_their_order_up_to_the_one_waited_for():
    streams, made = EmulatedStreams(), []
    tickets = [streams.launch(None, group, lambda i=i: made.append(i), 1.0) for i, group in enumerate("aabab")]
    streams.wait(tickets[1])
    assert made == [0, 1]
    streams.wait(tickets[0])
    streams.wait(tickets[2])
    assert made == [0, 1, 2]
    streams.finish()
    assert made == [0, 1, 2, 3, 4]


def test_bits_are_compared_not_values():
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert same_bits([nan, None, 3], [nan.clone(), None, 3])
    assert not same_bits([zero], [-zero])
    assert not same_bits([zero], [zero.double()])


def test_the_replay_of_requests_reserves_what_torch_did() -> None:
    assert replay_requests(HISTORY) == (56 * MIB, 56 * MIB)
    more = [*HISTORY, event("segment_alloc", 200 * MIB, 60 * MIB), event("alloc", 700, 4 * MIB)]
    assert replay_requests(more) == (96 * MIB, 56 * MIB)


def test_a_row_with_other_bytes_or_other_results_is_broken():
    row = Row("ours", 1.0, 0.0, 100, 100, True)
    assert row.broken is None
    assert "99" in replace(row, live_bytes=99).broken
    assert "results" in replace(row, same_results=False).broken
    assert replace(row, same_results=False, step_us=1.0).broken is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU: nothing measured")


@pytest.mark.slow
def test_the_command_on_the_cpu(tmp_path, capsys):
    out = tmp_path / "record.json"
    assert main(["--device", "cpu", "--layers", "1", "--out", str(out)]) == 0
    assert "nothing is timed" in " ".join(capsys.readouterr().out.split())
    record = json.loads(out.read_text())
    assert [row["name"] for row in record["rows"]] == ["original", "ours"]
    assert all(row["live_bytes"] == row["predicted_peak_bytes"] and row["step_us"] is None for row in record["rows"])
    assert record["packages"]["torch"] == torch.__version__
