"""The package as a user meets it."""

import doctest
import subprocess
import sys

import overlap_sched
import overlap_sched.peak_memory


def test_the_examples_in_docstrings() -> None:
    assert doctest.testmod(overlap_sched) == (0, 4)
    assert doctest.testmod(overlap_sched.peak_memory) == (0, 5)


def test_the_core_never_imports_torch() -> None:
    script = (
        "import sys, overlap_sched, overlap_sched.cost, overlap_sched.cli.command\n"
        "overlap_sched.schedule(overlap_sched.EXAMPLE)\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_needs_torch_is_there_when_asked_for() -> None:
    assert callable(overlap_sched.schedule_graph)
    assert callable(overlap_sched.load_dump)
    assert not hasattr(overlap_sched, "no_such_name")
