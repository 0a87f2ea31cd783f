"""No name of a package hides one of its modules: ``import overlap_sched.peak_memory.peak`` gives the module."""

import importlib
import pkgutil
from types import ModuleType

import pytest


@pytest.mark.parametrize("name", ["judge", "analysis", "peak_memory"])
def test_names_of_a_package_hide_no_module(name: str) -> None:
    package = importlib.import_module(f"overlap_sched.{name}")
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    assert len(modules) > 3
    for module in modules:
        importlib.import_module(f"overlap_sched.{name}.{module}")
        assert isinstance(getattr(package, module), ModuleType), module
