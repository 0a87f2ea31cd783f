"""Ten lines for each framework, as docs/fully_shard.md has them, on two ranks: they train, and our pass sees them."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.support.ranks import free_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"Accelerate": "accelerate", "Trainer": "transformers", "Lightning": "lightning", "diffusers": "diffusers"}


@pytest.mark.slow
@pytest.mark.parametrize("framework", PACKAGES)
def test_it_runs_on_two_ranks(framework: str, tmp_path: Path) -> None:
    if find_spec(PACKAGES[framework]) is None:
        pytest.skip(f'{PACKAGES[framework]} is not installed: pip install -e ".[frameworks]"')
    # a fresh cache: behind a hit no pass is called, and there is nothing to see
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run(
        [*run, "-m", "tests.support.framework_ranks", framework, str(tmp_path)],
        env={**os.environ, **own}, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        said = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert said["collectives"]
        assert all(said["collectives"])
        assert said["error"] < 1e-5
        assert (said["moved"] > 0) == (framework != "diffusers")
