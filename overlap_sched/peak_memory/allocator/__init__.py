"""torch's caching allocator, replayed without a GPU.

- :mod:`~overlap_sched.peak_memory.allocator.reserved`: start here: reserved, the smallest capacity, retries of an
  order.
- :mod:`~overlap_sched.peak_memory.allocator.caching`: the allocator.
- :mod:`~overlap_sched.peak_memory.allocator.expandable`: the same with ``expandable_segments:True``.
- :mod:`~overlap_sched.peak_memory.allocator.kinds`: which of them replays; compiled where that could be built.
- :mod:`~overlap_sched.peak_memory.allocator.devices`, :mod:`~overlap_sched.peak_memory.allocator.trail`: one order, or
  many that are like it, on several devices.
- :mod:`~overlap_sched.peak_memory.allocator.run`: beside an order that is still being made.
"""
