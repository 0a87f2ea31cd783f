"""Give torch's own memory planner the sizes that we know: generated code then stays within the peak that was planned.

When code is written, Inductor lets a dead buffer lie for a later one of its size, as long as *its estimate* of the peak
is not exceeded. That estimate counts the output of a kernel that writes over its input as new, and what stays inside a
fused kernel as memory: it is too high, and what is held within that slack is real. Here both are set right, for the
buffers of which we know it in every order.
"""

from collections.abc import Sequence
from typing import Any

from overlap_sched.inductor.lift.buffers import Buffers


def tell_sizes(snodes: Sequence[Any], buffers: Buffers) -> None:
    """Correct the sizes in ``SchedulerBuffer.mpi_buffer``, which ``memory.estimate_peak_memory`` adds up."""
    by_name = {out.get_name(): out for snode in snodes for out in snode.get_outputs()}
    for name in buffers.internal:
        by_name[name].mpi_buffer.size_alloc = by_name[name].mpi_buffer.size_free = 0
    for source, output in buffers.overwrites:
        by_name[source].mpi_buffer.size_free = 0  # the memory goes on under the other name
        by_name[output].mpi_buffer.size_alloc = 0
