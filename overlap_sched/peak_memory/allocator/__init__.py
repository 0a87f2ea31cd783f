"""torch's caching allocator, replayed without a GPU.

- :mod:`~overlap_sched.peak_memory.allocator.reserved`: start here: reserved, the smallest capacity, retries of an
  order, on one device or several.
- :mod:`~overlap_sched.peak_memory.allocator.caching`: the allocator.
- :mod:`~overlap_sched.peak_memory.allocator.expandable`: the same with ``expandable_segments:True``.
- :mod:`~overlap_sched.peak_memory.allocator.kinds`: which of them replays; compiled where that could be built.
- :mod:`~overlap_sched.peak_memory.allocator.trail`: many orders that are like one, on several devices.
- :mod:`~overlap_sched.peak_memory.allocator.run`: beside an order that is still being made.
"""
