"""What importing the FX front end loads."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_front_end_loads_no_dumps() -> None:
    """Reading dumps is asked for by itself."""
    script = (
        "import sys, overlap_sched.fx\n"
        "dumps = [name for name in sys.modules if name.startswith('overlap_sched.dump')]\n"
        "assert not dumps, dumps\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
