"""An offset in one arena for every storage of an order.

- :mod:`~overlap_sched.peak_memory.addresses.plan`: start here: greedy orders, improved, then the searches.
- :mod:`~overlap_sched.peak_memory.addresses.sweep`: do they fit? depth first over offsets.
- :mod:`~overlap_sched.peak_memory.addresses.search`: the strong search: place or postpone.
- :mod:`~overlap_sched.peak_memory.addresses.restarts`: the same, many short ones that learn; the smallest
  arena that they find.
- :mod:`~overlap_sched.peak_memory.addresses.bounds`: what can no longer fit.
- :mod:`~overlap_sched.peak_memory.addresses.boxes`: storages as boxes in time and space.
- :mod:`~overlap_sched.peak_memory.addresses.check`: do they hold? brute force, shares no code.
"""
