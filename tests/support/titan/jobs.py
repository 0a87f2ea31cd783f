"""Training jobs of torchtitan on CPU ranks, for tests and for ``scripts/titan.sh``."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.ranks import ROOT, run_ranks

OURS = ("--override.imports", "overlap_sched.titan.options", "--compile.pass_pipeline", "overlap_sched")
LLAMA = ("--module", "tests.support.titan", "--config", "llama3")
DEEPSEEK = ("--module", "tests.support.titan", "--config", "deepseek_v3")
TP = ("--parallelism.tensor_parallel_degree", "2")
EP = ("--parallelism.expert_parallel_degree", "2")
PP = ("--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "4")
PP += ("--compile.disable_passes", "cudagraph_pass,joint_transformer_block_bucketing_reordering_pass")
"""Two stages on each of two pipeline ranks, four microbatches. Without torchtitan's buckets: see ``cpu.py``."""
DUAL_PIPE = (*PP, "--parallelism.pipeline_parallel_schedule", "DualPipeV")
ZERO_BUBBLE = (*PP, "--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble")
JIT = ("--compile.mode", "jit", "--compile.backend", "inductor", "--compile.passes", "transformer_block_bucketing")
FULL = ("--compile.inductor_compilation", "full")


class Job(NamedTuple):
    """One training: its name, torchtitan's arguments, what is done to it (see :mod:`tests.support.titan.train`)."""

    name: str
    arguments: tuple[str, ...]
    done_to: str = "nothing"


def train(folder: Path, jobs: Iterable[Job], ranks: int = 2) -> dict[str, list[dict[str, Any]]]:
    """Run jobs one after the other on the same ranks; per job what each rank has seen."""
    jobs = list(jobs)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    run_ranks("tests.support.titan.train", folder, folder / "jobs.json", ranks=ranks, limit_s=600, PYTHONHASHSEED="0")
    return {
        job.name: [json.loads((folder / f"{job.name}-{rank}.json").read_text()) for rank in range(ranks)]
        for job in jobs
    }


def precompile(folder: Path, *arguments: str) -> list[str]:
    """Make ``folder/fx_trace_default.bin`` for two ranks in one process; the order of its graph, by name."""
    where = ("--compile.precompile_artifact_dir", str(folder), "--parallelism.data_parallel_shard_degree", "2")
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.titan.precompile", *arguments, *where]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    order: list[str] = json.loads((folder / "order.json").read_text())
    return order
