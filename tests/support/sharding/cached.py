"""One start of a job, on a rank of a fake group: ``python -m tests.support.sharding.cached FILE``.

Compiles a small sharded model by Inductor; writes what torch's caches counted.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh

from llama_repro.capture.parallelism import fake_world
from overlap_sched.distributed import shard


def main() -> None:
    """See the module."""
    with fake_world(2):
        model = shard(nn.Sequential(nn.Linear(8, 8, bias=False)), init_device_mesh("cpu", (2,)))
        assert isinstance(model, nn.Module)
        torch.compile(model, fullgraph=True)(torch.ones(2, 8)).sum().backward()
    counted = {**counters["aot_autograd"], **counters["inductor"]}
    Path(sys.argv[1]).write_text(json.dumps({name: n for name, n in counted.items() if "cache" in name}))


if __name__ == "__main__":
    main()
