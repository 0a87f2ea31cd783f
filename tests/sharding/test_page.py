"""docs/fully_shard.md: its program runs on two ranks, and is reordered."""

import pytest

from tests.support.ranks import run_ranks
from tests.support.sharding.page import PAGE

pytestmark = pytest.mark.slow


def test_the_program_runs_and_is_reordered(tmp_path: object) -> None:
    said = run_ranks("tests.support.sharding.page", ranks=2, limit_s=400, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    lines = [line for line in said.splitlines() if line.startswith(("forward", "backward"))]
    assert [line.split()[0] for line in lines] == ["forward", "backward"] * 2, said
    assert "left as it was" not in said
    program, frameworks = PAGE.read_text().split("## In Accelerate")  # those are run by tests/frameworks
    assert program.count("```python") == program.count("```python run")
    assert frameworks.count("```python") == 5  # and one by tests/deepspeed
