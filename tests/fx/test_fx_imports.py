"""What importing the FX front end loads, and that no name hides another."""

import importlib
import pkgutil
import subprocess
import sys

import pytest


def test_the_front_end_loads_no_dumps() -> None:
    """Reading dumps is asked for by itself."""
    script = (
        "import sys, overlap_sched.fx\n"
        "dumps = [name for name in sys.modules if name.startswith('overlap_sched.dump')]\n"
        "assert not dumps, dumps\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["fx", "inductor", "distributed"])
def test_no_function_hides_a_module(name: str) -> None:
    package = importlib.import_module(f"overlap_sched.{name}")
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    assert len(modules) > 5
    for module in modules:
        assert importlib.import_module(f"{package.__name__}.{module}") is getattr(package, module)
