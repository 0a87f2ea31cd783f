"""For all tests: a property fails on what it finds, never because the machine was slow while it looked.

For those of the command: a terminal that is the same everywhere, and the example as a file.
"""

import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from overlap_sched import EXAMPLE, write_problem
from tests.support.examples import RUN, Command, module_at, often

# Inductor takes the widest vectors that the processor says it has; else each process compiles and loads one probe for
# each kind first (7 s of processor time with an empty cache, 1 s with its own).
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Nights have more time than commits."""
    parser.addoption(
        "--nightly", action="store_true", help="tests marked nightly, too, and properties on more examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before test modules are imported: their decorators say on how many examples."""
    nightly, fast = config.getoption("--nightly"), "not slow" in config.getoption("markexpr")
    os.environ[RUN] = "nightly" if nightly else "fast" if fast else "whole"
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=often()
    )
    settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # before pytest picks by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Private tests are slow, too, as setup.cfg says; leave out what only nights have time for."""
    for item in items:
        if "private" in item.keywords:
            item.add_marker("slow")
    if not config.getoption("--nightly"):
        left_out = [item for item in items if "nightly" in item.keywords]
        items[:] = [item for item in items if "nightly" not in item.keywords]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours, 120 letters wide."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, and what it printed."""
    return Command(capsys)


@pytest.fixture
def problem(tmp_path: Path) -> str:
    """A file with the example."""
    path = tmp_path / "example.json.gz"
    write_problem(EXAMPLE, path)
    return str(path)


@pytest.fixture(scope="session")
def allocator_judge() -> ModuleType:
    """A replay of the caching allocator that shares no code with ours; it lies beside some checkouts."""
    path = Path(__file__).parents[2] / "shared" / "tools" / "allocator.py"
    if not path.exists():
        pytest.skip("no judge beside the checkout: ../shared/tools/allocator.py")
    return module_at(path)
