"""Memory first: the order and the addresses with the lowest peak. No torch; imports only the core.

Example:
    >>> from overlap_sched import EXAMPLE
    >>> from overlap_sched.peak_memory import best_order, plan_addresses
    >>> plan = best_order(EXAMPLE)
    >>> plan.original_bytes >> 20, plan.peak_bytes >> 20, plan.optimal
    (21, 18, True)
    >>> plan_addresses(EXAMPLE, plan.order).fragmentation
    0.0
"""

from overlap_sched.peak_memory.addresses import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import Peak, explain_peak
from overlap_sched.simulate.allocator import Reservation, replay_allocator

__all__ = [
    "AddressPlan",
    "MemoryPlan",
    "Peak",
    "Reservation",
    "best_order",
    "exact_order",
    "explain_peak",
    "plan_addresses",
    "replay_allocator",
]
