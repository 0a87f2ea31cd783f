"""A second start of a job with ``shard`` takes its code from torch's caches."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_ranks


@pytest.mark.slow
def test_the_second_start_hits(tmp_path: Path) -> None:
    counted = []
    for start in ("first", "second"):
        file = tmp_path / start
        run_ranks(
            "tests.support.sharding.cached", file, ranks=1, limit_s=600, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")
        )
        counted.append(json.loads(file.read_text()))
    assert counted == [
        {"autograd_cache_miss": 1, "autograd_cache_saved": 1, "fxgraph_cache_miss": 2},
        {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2},
    ]
