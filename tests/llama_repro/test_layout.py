"""Folders of llama_repro import in one direction only, and nothing is loose beside them."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "llama_repro"
ABOVE = {
    "capture": set(),
    "harness": {"capture"},
    "generate": {"capture", "harness"},
    "training": {"capture", "harness"},
    "titan": {"capture", "harness"},
    "bench": {"capture", "harness", "generate", "titan"},
    "gpu": {"capture", "harness", "training"},
}


@pytest.mark.parametrize("folder", ABOVE)
def test_a_folder_imports_only_from_those_above_it(folder: str) -> None:
    found = {
        name for path in (HERE / folder).glob("*.py") for name in re.findall(r"llama_repro\.(\w+)\.", path.read_text())
    }
    assert found & ABOVE.keys() <= ABOVE[folder] | {folder}


def test_nothing_is_loose() -> None:
    assert {path.name for path in HERE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}
    assert {path.parent.name for path in HERE.glob("*/__init__.py")} == ABOVE.keys()
