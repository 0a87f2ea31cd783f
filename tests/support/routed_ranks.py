"""One rank of a real gloo job: a layer with experts, forward and backward, whole and in parts.

``python -m tests.support.routed_ranks FOLDER``, started as torchrun would. Writes ``FOLDER/rank<r>.json``: how many
rows it has sent to every rank, in each exchange of each graph.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from overlap_sched.fx import lift
from overlap_sched.fx.dimensions.candidates import expert_fissions
from overlap_sched.fx.rewrites import rewrite_graph
from tests.support.fx_graphs import C10D
from tests.support.routed_graphs import check_alike, inputs_of_ranks, step, trace


class Sent(torch.fx.Interpreter):
    """Runs a graph and notes what is sent."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.splits: list[list[int]] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is C10D.all_to_all_single.default:
            self.splits.append(list(args[2]))
        return super().call_function(target, args, kwargs)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    whole = trace(step)
    inputs = inputs_of_ranks(whole, 3)[rank]
    first = Sent(whole)
    want, sent = first.run(*inputs), [first.splits]
    for one in expert_fissions(lift(trace(step)), (2, 4)):
        gm = trace(step)
        rewrite_graph(gm, [one])
        check_alike(want, gm(*inputs))
        again = Sent(gm)
        check_alike(want, again.run(*inputs))
        sent.append(again.splits)
    (folder / f"rank{rank}.json").write_text(json.dumps(sent))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
