"""Where ranks run: each bound to one core; on a machine that others use, with that core kept for it.

Without binding, the kernel moves threads of ranks between cores, and two ranks may compute on one core for milliseconds
while gloo's threads have the other.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

ALONE = "FIDELITY_ALONE"
"""Environment variable: set where ranks should keep their cores from other processes (needs root)."""
_NICE, _NICE_OF_SESSION = -15, -20


@contextmanager
def own_core(rank: int) -> Iterator[None]:
    """Bind this process to a core, one rank per core where there are enough; keep the core where :data:`ALONE` is set.

    To keep it, the process's session gets a higher priority (Linux shares cores among sessions before it looks at a
    process's own niceness: autogroups), and a child that only spins, with the policy for idle time, keeps the core in
    this session while the rank waits.
    """
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})
    if not os.environ.get(ALONE):
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with open("/proc/self/autogroup", "w") as group:
        group.write(str(_NICE_OF_SESSION))
    spinner = _spinning()
    try:
        yield
    finally:
        os.kill(spinner, signal.SIGKILL)
        os.waitpid(spinner, 0)


def _spinning() -> int:
    """A child that spins for as long as its parent lives."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(100_000):
            pass
    os._exit(0)
