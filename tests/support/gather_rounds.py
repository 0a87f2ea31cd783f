"""Two gloo ranks, eight functional all_gathers in flight, round after round: ``safe`` or ``plain``. No test itself."""

import contextlib
import sys

import torch
import torch.distributed as dist

from overlap_sched.inductor.gloo import safe_gathers
from tests.support.inductor.models import routed

ROUNDS, IN_FLIGHT = 300, 8


def main(how: str) -> None:
    functional = torch.ops._c10d_functional
    dist.init_process_group("gloo")
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    with safe_gathers() if how == "safe" else contextlib.nullcontext():
        assert routed() == (how == "safe")
        for k in range(ROUNDS):
            sent = [torch.full((128 + i, 64), float(100 * rank + i + k)) for i in range(IN_FLIGHT)]
            flying = [functional.all_gather_into_tensor(x, ranks, group) for x in sent]
            for i, y in enumerate(flying):
                parts = functional.wait_tensor(y).chunk(ranks)
                assert all(bool((part == 100 * r + i + k).all()) for r, part in enumerate(parts))
    assert not routed()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
