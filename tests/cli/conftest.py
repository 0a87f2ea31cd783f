"""A dump for the tests of the command."""

from pathlib import Path

import pytest


@pytest.fixture
def dump(tmp_path: Path) -> str:
    """That of a layer."""
    pytest.importorskip("torch")
    from tests.cli.test_dump import DUMP

    path = tmp_path / "layer.py"
    path.write_text(DUMP)
    return str(path)
