"""Files for the tests of the command, in a folder that is the current one."""

from pathlib import Path

import pytest

from tests.support.inputs import write_inputs


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_terminal: None) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dump(inputs: Path) -> str:
    pytest.importorskip("torch")
    return "layer.py"
