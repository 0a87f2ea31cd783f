"""The captured graphs, run on every rank of a small world, compute what plain PyTorch does."""

import pytest

torch = pytest.importorskip("torch")

from llama_repro.capture.configs import LlamaConfig  # noqa: E402
from llama_repro.capture.model import weights_of  # noqa: E402
from llama_repro.capture.trace import captured  # noqa: E402
from tests.support.lockstep import (  # noqa: E402
    angles,
    reference_loss,
    run_lockstep,
)

_ROWS = ("wo", "w2")
"""Tensor parallelism splits these by column; all other matrices by row."""


def _split(name, weight, config, tp_rank):
    short = name.split(".")[-1]
    if config.tp == 1 or "norm" in short or short == "embedding":
        return weight
    return weight.chunk(config.tp, dim=1 if short in _ROWS else 0)[tp_rank]


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "tp"), [(1, 1), (2, 1), (2, 2)])
def test_loss_and_gradients_are_those_of_plain_pytorch(fsdp, tp):
    config = LlamaConfig("test", 64, 128, 2, 4, 2, 64, 2, 16, fsdp=fsdp, tp=tp)
    generator = torch.Generator().manual_seed(0)
    whole = LlamaConfig("whole", 64, 128, 2, 4, 2, 64, 2, 16, fsdp=1)
    weights = {
        w.name: (torch.randn(w.shape, generator=generator) * (0.1 if len(w.shape) == 2 else 0.2) + (len(w.shape) == 1))
        .bfloat16()
        .float()
        .requires_grad_()
        for w in weights_of(whole)
    }
    tokens = torch.randint(64, (fsdp, 2, 16), generator=generator)
    labels = torch.randint(64, (fsdp, 2, 16), generator=generator)
    loss = torch.stack([reference_loss(config, weights, *batch) for batch in zip(tokens, labels, strict=True)]).mean()
    loss.backward()

    names = [w.name for w in weights_of(config)]
    rotation = torch.polar(torch.ones(()), angles(config))
    inputs = []
    for rank in range(config.world):
        data, part = divmod(rank, tp)
        shards = [_split(name, weights[name].detach(), config, part).chunk(fsdp)[data] for name in names]
        mine = tokens[data].T.contiguous().chunk(tp)[part], labels[data].T.contiguous() - part * (64 // tp)
        inputs.append([*shards, *mine, rotation])
    with captured(config) as graphs:
        saved = len(graphs.backward.graph.find_nodes(op="placeholder")) - 1
        names_of_groups = {
            n.args[-1] for g in (graphs.forward, graphs.backward) for n in g.graph.nodes if "all_" in n.name
        }
        names_of_groups |= {n.args[-1] for n in graphs.backward.graph.nodes if "reduce_scatter" in n.name}
        groups = {}
        for name in names_of_groups:
            rows = torch.arange(config.world).view(fsdp, tp)
            size = torch.distributed.distributed_c10d._resolve_process_group(name).size()
            is_fsdp = tp == 1 or name == min(names_of_groups, key=int)
            assert size == (fsdp if is_fsdp else tp)
            groups[name] = (rows.T if is_fsdp else rows).tolist()
        forward = run_lockstep(graphs.forward, inputs, groups)
        backward = run_lockstep(graphs.backward, [[*out[1:], torch.ones(())] for out in forward], groups)

    assert saved == len(forward[0]) - 1
    losses = torch.stack([out[0] for out in forward])
    torch.testing.assert_close(losses.mean(), loss.detach(), rtol=0.01, atol=0)
    for i, name in enumerate(names):
        for rank in range(config.world):
            data, part = divmod(rank, tp)
            expected = _split(name, weights[name].grad, config, part).chunk(fsdp)[data]
            got = backward[rank][i]
            assert got.dtype is torch.float32
            error = (got - expected).norm() / weights[name].grad.norm()
            assert error < 0.03, f"{name} on rank {rank}: relative error {error:.3f}"
