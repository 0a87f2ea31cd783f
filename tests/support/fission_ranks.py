"""One rank of a real gloo job: a tensor-parallel layer whole and in parts, compared by bits.

``python -m tests.support.fission_ranks FOLDER``, started as torchrun would. Writes ``FOLDER/rank<r>.json``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from overlap_sched.fx.dimensions import fission_of, region_from
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.transform.dimension_graph import range_cut
from tests.support.fission_graphs import EXAMPLES, traced


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    inputs = [torch.randn(shape, generator=generator) for shape in EXAMPLES["layer"].shapes]
    gm = traced("layer")
    seed = next(iter(gm.graph.nodes))
    one = fission_of(region_from(gm.graph, {seed: range_cut(tuple(seed.meta["val"].shape), 0, 2)}, 2))
    assert one is not None
    whole = traced("layer")
    rewrite_graph(gm, [one])
    with safe_gathers():
        alike = [torch.equal(a, b) for _ in range(3) for a, b in zip(whole(*inputs), gm(*inputs), strict=True)]
    (folder / f"rank{rank}.json").write_text(json.dumps([alike, len(one.nodes)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
