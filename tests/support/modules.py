"""Python files that are not in a package: scripts, and the independent judge."""

import importlib.util
from pathlib import Path
from types import ModuleType


def module_at(path: Path) -> ModuleType:
    """The file as a module of its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
