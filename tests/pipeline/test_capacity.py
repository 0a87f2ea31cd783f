"""Layouts of a model on so many GPUs: parameters as published, operations by hand, and all layouts tried by force."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import _Action, _add_reduce_grad, _add_unshard_reshard

from overlap_sched.cli.arguments import CapacityCommand
from overlap_sched.cli.capacity import read_question
from overlap_sched.cost import Collective
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.capacity import Question, estimate_us, even_cut, plan_capacity, saves_too_much
from overlap_sched.pipeline.compare import named, plan_pipeline
from overlap_sched.pipeline.csv_file import schedule_csv
from overlap_sched.pipeline.dimensions import LayerPrices, Layout, Mesh, Recompute, Sharding, read_model
from overlap_sched.pipeline.graphs import JobGraphs
from overlap_sched.pipeline.job import PipelineBlock
from overlap_sched.pipeline.job_file import parse_job
from overlap_sched.pipeline.named import lay_out_named
from overlap_sched.problem import Group
from overlap_sched.problem.file import write_problem
from tests.pipeline.test_layers import graphs
from tests.support.examples import Command
from tests.support.pipelines import uniform

TINY = {"hidden": 2048, "layers": 8, "heads": 16, "ffn": 5632, "vocabulary": 32000}


def ask(**given: Any) -> Question:
    asked = {"gpus": 8, "global_batch": 16, "sequence": 2048, "model": TINY, "micro_batch": (1, 2), **given}
    return Question(format="overlap-capacity/1", **asked)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3-8b", 8.030), ("llama-3-70b", 70.554), ("llama-3-405b", 405.853), ("llama-2-13b", 13.016),
     ("mixtral-8x7b", 46.703), ("mixtral-8x22b", 140.63), ("gpt-3-175b", 174.6), ("mt-nlg-530b", 529.6),
     ("qwen-3-30b", 30.532), ("qwen-3-235b", 235.094), ("gpt-oss-120b", 116.83), ("deepseek-v3", 671.026)],
)  # fmt: skip
def test_parameters_as_published(name: str, billions: float) -> None:
    assert read_model(name, "").parameters / 1e9 == pytest.approx(billions, rel=5e-4)


def test_operations_of_a_token() -> None:
    """6 N D without the embedding, and attention: 12 x layers x hidden x half of the sequence."""
    model = read_model("llama-3-70b", "")
    weights = model.parameters - model.vocabulary * model.hidden - (2 * model.layers + 1) * model.hidden
    assert model.token_flops(8192) == 6 * weights + 12 * model.layers * model.hidden * 4096


def prices(
    mesh: Mesh, recompute: Recompute = "none", sharding: Sharding = "zero1", model: dict[str, Any] = TINY
) -> LayerPrices:
    return LayerPrices(read_model(model, ""), read_cluster("dgx-h100"), Layout(mesh, 1, recompute, sharding), 2048)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_ranks_multiply_what_a_token_meets(name: str) -> None:
    """Two operations for each weight and token, whoever has which part of both."""
    model, mesh = read_model(name, ""), Mesh(dp=4, cp=2, tp=4, ep=8)
    of = LayerPrices(model, read_cluster("dgx-h100"), Layout(mesh, 2, "none", "zero1"), 4096)
    for routed, _ in set(model.kinds):
        shapes = [of.placed(one)[1] for one in model.matmuls(routed)]
        own, experts = model.layer_parameters(routed)
        met = own - 2 * model.hidden + experts * model.top_k / max(model.experts, 1)
        assert sum(m * n * k * batch for m, n, k, batch in shapes) * mesh.tp == pytest.approx(met * of.tokens)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:2", "interleaved:4", "interleaved-zb:5", "zb-h1", "zbv"])
def test_stages_are_gathered_and_freed_where_torch_does(schedule: str) -> None:
    job = ask(model=TINY | {"layers": 20}).job(Layout(Mesh(pp=4, dp=2), 1, "none", "fsdp"))
    one = plan_pipeline(job, named(schedule), even_cut(job, named(schedule)))
    only, comms = (
        [row.split(",") for row in schedule_csv(one.job, one.schedule, one.replay, form).split()]
        for form in ("compute_only", "compute_comms")
    )
    gathered = (sum(part.unshard.output_bytes for part in of.stages if part.unshard) for of in (job, one.job))
    assert len({*gathered}) == 1
    for order, ours in zip(only, comms, strict=True):
        actions = _add_unshard_reshard([_Action.from_str(cell) for cell in order])
        with_waits = map(str, _add_reduce_grad(actions, job.micro_batches))  # from 2.15 on
        theirs = [cell for cell in with_waits if "WAIT" not in cell]
        assert [cell for cell in ours if "SEND" not in cell and "RECV" not in cell] == theirs
        assert theirs.count("0UNSHARD") == (0 if "0F0" not in order else 1 if one.job.rank_of.count(0) < 4 else 4)


def test_what_ranks_divide() -> None:
    """Parameters, gradients and states of all ranks of a mesh add up to those of the model."""
    routed = prices(Mesh(dp=4, ep=2), "none", "fsdp", TINY | {"experts": 8, "top_k": 2})
    assert sum(one.static_bytes for one in routed.stages()) * 4 == pytest.approx(16 * routed.model.parameters, rel=1e-4)
    whole = read_model(TINY, "").parameters
    for mesh in (Mesh(), Mesh(dp=8), Mesh(dp=2, cp=2, tp=2)):
        held = sum(stage.static_bytes for stage in prices(mesh, "none", "fsdp").stages())
        norms = 2 * 8 * 2048 * 16  # norms are on every tensor-parallel rank, but divided here
        assert held * mesh.dp * mesh.cp * mesh.tp == pytest.approx(16 * whole, abs=norms + 16 * 2048)
        kept = sum(stage.static_bytes for stage in prices(mesh).stages()) * mesh.tp
        assert kept == pytest.approx((6 + 12 / mesh.dp / mesh.cp) * whole, rel=1e-4)


def test_collectives_of_replicas_beside_compute() -> None:
    """FSDP's gathers and reductions of each micro-batch, those of the optimizer once; what compute hides slows it."""
    of, once, slower = prices(Mesh(dp=8), "none", "fsdp"), prices(Mesh(dp=8)), 1 - 1 / 1.189
    gather_us, reduce_us = of.collective_us("all_gather", 2e8, "dp"), of.collective_us("reduce_scatter", 4e8, "dp")
    for us in (10.0, 1e6):
        stage, other = (one.stage([us] * 3, [0.0] * 3, [0, 0, 0], 10**8) for one in (of, once))
        out_us, in_us = of.fused_us(2e8 + 3e8 / 8), of.fused_us(3e8)
        moves = (
            (stage.forward, us + out_us, gather_us),
            (stage.backward, 2 * us + out_us + in_us, gather_us + reduce_us),
        )
        for block, own_us, moved_us in moves:
            assert block.time_us == pytest.approx(max(moved_us, own_us + moved_us * slower))
        assert (stage.forward.transient_bytes, stage.backward.transient_bytes) == (4 * 10**8, 10**9)
        assert other.reduce == PipelineBlock(max(reduce_us - 2 * us, 0.0))


@pytest.mark.parametrize(("ep", "experts"), [(1, 0), (2, 10**6)])
def test_a_stage_in_a_pipeline_is_gathered_and_reduced_whole(ep: int, experts: int) -> None:
    """4 replicas: 16 bits gathered, 32 bits of gradients kept and reduced once, 12 of states and shards divided."""
    of = prices(Mesh(pp=2, dp=4, ep=ep), "none", "fsdp")
    stage, own = of.stage([10.0] * 3, [0.0] * 3, [0, 0, 0], 10**6, experts), 10**6 + experts
    divided = 10**6 / 4 + experts * ep / 4
    sizes = {"dp": 10**6, "experts": experts}
    gather_us, reduce_us = (
        sum(of.collective_us(op, each * size, among) for among, size in sizes.items())
        for op, each in (("all_gather", 2), ("reduce_scatter", 4))
    )
    assert stage.unshard == PipelineBlock(gather_us + of.fused_us(2 * own + 3 * divided), 0, 2 * own)
    assert stage.reduce == PipelineBlock(reduce_us + of.fused_us(3 * own))
    assert of.matmul_us(64, 8192, 8192) == prices(Mesh(dp=8)).matmul_us(64, 8192, 8192)  # adds up gradients
    assert of.matmul_us(64, 8192, 8192)[2] > prices(Mesh(dp=8), "none", "fsdp").matmul_us(64, 8192, 8192)[2]
    assert (stage.static_bytes, stage.forward) == (4 * own + 16 * divided, PipelineBlock(10.0, 0, 2 * 2048 * 2048))


def test_links_are_shared_where_replicas_are_as_far_as_neighbours() -> None:
    """Nodes of 8: with tp = 8 both are other nodes, with pp x dp = 8 neither."""
    for mesh, shared in ((Mesh(2, 2, tp=8), True), (Mesh(4, 8), False), (Mesh(2, 4), True), (Mesh(2, 16), True)):
        job = ask(gpus=mesh.pp * mesh.dp * mesh.tp, global_batch=64).job(Layout(mesh, 1, "none", "fsdp"))
        assert job.shared_links is shared


def test_what_waits_for_collectives_by_hand() -> None:
    """Blocks gather and scatter tokens; rows go to top_k experts and back; keys and values as attention runs."""

    def us(op: str, nbytes: int, size: int) -> float:
        return model_of(read_cluster("dgx-h100")).collective_us(Collective(op, nbytes, Group(size, True)))

    tokens, model = 2048 * 2048 * 2, TINY | {"experts": 8, "top_k": 2}
    for routed, (tp, ep) in product((False, True), ((2, 1), (1, 4), (2, 4))):
        layer = prices(Mesh(dp=4, tp=tp, ep=ep), model=model).layer(routed, windowed=False)
        waits_us = (2 - routed) * (tp - 1) * (us("all_gather", tokens, 2) + us("reduce_scatter", tokens, 2))
        waits_us += 2 * us("all_to_all", 2 * tokens // tp, ep) if routed and ep > 1 else 0.0
        halves = layer.forward, layer.input_gradient, layer.weight_gradient
        assert [half and half.exposed_us for half in halves] == pytest.approx([waits_us, waits_us, 0.0])
    of = prices(Mesh(cp=2))
    attending_us, _ = of.attention_us(windowed=False)
    waits_us = us("all_gather", 2 * tokens, 2) - attending_us / 2
    assert of.layer(routed=False, windowed=False).forward.exposed_us == pytest.approx(waits_us)


def test_recomputation_trades_time_for_memory() -> None:
    none, selective, full = (
        prices(Mesh(tp=2), of).layer(routed=False, windowed=False) for of in ("none", "selective", "full")
    )
    assert none.saved_bytes > selective.saved_bytes > full.saved_bytes == 2 * 1024 * 2048
    assert none.backward.time_us < selective.backward.time_us < full.backward.time_us
    assert full.backward.time_us == pytest.approx(none.backward.time_us + none.forward.time_us)
    # of each token, in 16 bits: inputs of matmuls and norms, query, key, value, gate and up
    assert none.saved_bytes == 2 * 1024 * (8 * 2048 + 3 * 5632)


def test_bubble_of_1f1b_in_closed_form() -> None:
    """Stages alike, links free: (p - 1) / (m + p - 1)."""
    job = ask(model=TINY | {"vocabulary": 16}).job(Layout(Mesh(pp=4, dp=2), 1, "none", "zero1"))
    planned = plan_pipeline(job, named("1f1b"), even_cut(job, named("1f1b")))
    assert planned.replay.bubble == pytest.approx(3 / (8 + 3), abs=0.02)


def test_what_is_saved_has_to_fit() -> None:
    """Of 1F1B, what as many micro-batches save on the first rank as there are ranks; what is transient comes later."""
    placed, schedule = lay_out_named(uniform(3, 8, saved=10), named("1f1b"))
    for most, too_much in ((29, True), (30, False)):
        assert saves_too_much(replace(placed, memory_limit_bytes=(most, 20, 10)), schedule) is too_much


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved:2", "zb-h1", "zbv"])
def test_rounds_repeat(schedule: str) -> None:
    """A step that is estimated from few micro-batches is that of all."""
    job = ask(global_batch=98).job(Layout(Mesh(pp=4, dp=2), 1, "none", "zero1"))
    planned = plan_pipeline(job, named(schedule), even_cut(job, named(schedule)))
    assert job.micro_batches == 49
    assert estimate_us(job, named(schedule)) == pytest.approx(planned.replay.step_us, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [80 * 10**9, 8 * 10**9, 0])
@pytest.mark.parametrize("experts", [0, 8])
def test_pruning_loses_nothing(limit: int, experts: int) -> None:
    model = TINY | ({"experts": experts, "top_k": 2, "ffn": 1408} if experts else {})
    asked = {"model": model, "pp": (1, 2, 4), "top": 5, "schedules": ("1f1b", "interleaved:2", "zbv")}
    limit = limit or plan_capacity(ask(**asked))[0].peak_bytes - 1  # what the best lacks is not only what it saves
    question = ask(**asked, memory_limit=limit)
    steps = defaultdict[object, list[float]](list)
    for layout in question.layouts():
        job = question.job(layout)
        for name in question.schedules if job.ranks > 1 else ("1f1b",):
            planned = plan_pipeline(job, named(name), even_cut(job, named(name)))
            steps[layout.mesh, layout.sharding] += [] if planned.shortage else [planned.replay.step_us]
    found = plan_capacity(question)
    assert [one.planned.replay.step_us for one in found] == sorted(min(own) for own in steps.values() if own)[:5]
    assert all(one.peak_bytes <= limit for one in found)


DUMP = """
format = "overlap-capacity/1"
gpus = 16
global_batch = 24
sequence = 100
recompute = ["none", "full"]
schedules = ["1f1b", "gpipe"]
[model]
forward = "forward.json"
backward = "backward.json"
gpus = 2
global_batch = 3
optimizer = 2
"""


def ask_of_dump(folder: Path, text: str = DUMP) -> Question:
    for name, problem in zip(("forward", "backward"), graphs(), strict=True):
        write_problem(problem, folder / f"{name}.json")
    (folder / "question.toml").write_text(text)
    question, _ = read_question(CapacityCommand(question=str(folder / "question.toml")), lambda text: None)
    return question


def test_a_dump_in_pipelines_and_replicas(tmp_path: Path) -> None:
    """5 layers on 2 GPUs: pipelines of 1, 2 and 4 ranks, 8, 4 and 2 of them; a micro-batch has 3 sequences."""
    question = ask_of_dump(tmp_path)
    meshes = [((pp, 8 // pp), again) for pp in (1, 2, 4) for again in ("none", "full")]
    assert [(one.mesh[:2], one.recompute) for one in question.layouts()] == meshes
    assert [one.mesh[:2] for one in ask_of_dump(tmp_path, DUMP.replace("gpus = 16", "gpus = 16\npp = [2]\ndp = [4]")
            .replace('["none", "full"]', '["none", "selective"]')).layouts()] == [(2, 4)]  # fmt: skip
    text = "\n".join(["ranks = 2", "micro_batches = 2", "recompute = true", DUMP[DUMP.index("[model]") :]])
    text = re.sub(r"(?m)^(recompute = true|gpus = 2|global_batch = 3)$", "", text) + "recompute = true\n"
    read = JobGraphs(lambda source: graphs()[source.name != "forward.json"])
    alone = parse_job('format = "overlap-pipeline/1"\n' + text, "job.toml", tmp_path, read)
    for layout in question.layouts():
        job = question.job(layout)
        assert job.micro_batches == 24 // 3 // layout.mesh.dp
        for one, stage in zip(job.stages[1:-1], alone.stages, strict=True):
            ways = stage.recomputed if layout.recompute == "full" else stage
            assert ways is not None
            group = Group(layout.mesh.dp, layout.mesh.dp <= 4, 0 if layout.mesh.dp <= 4 else 2)
            work = Collective("all_reduce", stage.static_bytes // 3, group)
            us = model_of(read_cluster("dgx-h100")).collective_us(work)
            assert (one.reduce and one.reduce.time_us) == pytest.approx(us)
            assert replace(one, reduce=None) == ways
    assert all(one.reduce is None for one in question.job(layout, "dp").stages)
    best = plan_capacity(question)[0]
    assert best.tokens_per_s == pytest.approx(24 * 100 / 16 / best.planned.replay.step_us * 1e6)
    flops = sum(node.flops for problem in graphs() for node in problem.nodes) * 2 / 300
    assert question.token_flops == flops


def test_a_dump_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask_of_dump(tmp_path)
    words = Command(capsys).words("capacity", str(tmp_path / "question.toml"), "--csv", str(tmp_path / "best.csv"))
    assert "DP8 of 2 GPUs, dump" in words
    assert "5 layers (by repeated operators): embedding, layer 1 | layer 2" in words
    assert (tmp_path / "best.csv").read_text().startswith("0F0")
    for old, new, said in (
        ("gpus = 2\n", "", "gpus"),
        ("optimizer", "best", "best"),
        ("= 16", "= 3", "of 0 l"),
        ("gpus = 16", "gpus = 16\ntp = [2]", "tp is fixed by the dump"),
    ):
        with pytest.raises(PipelineError, match=said):
            plan_capacity(ask_of_dump(tmp_path, DUMP.replace(old, new)))


def test_what_binds() -> None:
    (slow,) = plan_capacity(ask(pp=(1,), tp=(8,), micro_batch=(1,), recompute=("none",)))
    assert slow.binds == "tp"
    one = {"micro_batch": (1,), "recompute": ("none",), "sharding": ("zero1",)}
    (bubbles,) = plan_capacity(ask(gpus=4, global_batch=4, pp=(4,), tp=(1,), **one))
    assert bubbles.binds == "bubble"
    plans = plan_capacity(ask(pp=(1,), tp=(1,), cp=(1,), recompute=("full",), micro_batch=(2,)))
    plans += plan_capacity(ask(pp=(1,), tp=(1,), cp=(1,), **one))
    assert [plan.binds for plan in plans] == ["memory", "memory", "compute"]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"model": "llama-3-70"}, "no model is named 'llama-3-70'"),
     ({"memory_limit": 10**6}, "none of .* layouts of 8 GPUs fits"),
     ({"gpus": 7, "tp": (3,)}, "none of 0 layouts"), ({"model": TINY | {"experts": 4}}, "top_k is at most experts")],
)  # fmt: skip
def test_errors(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        plan_capacity(ask(**given))
