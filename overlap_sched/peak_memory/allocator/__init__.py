"""torch's caching allocator, replayed without a GPU.

- :mod:`~overlap_sched.peak_memory.allocator.reserved`: start here: reserved, the smallest capacity, retries of an
  order.
- :mod:`~overlap_sched.peak_memory.allocator.caching`: the allocator.
- :mod:`~overlap_sched.peak_memory.allocator.expandable`: the same with ``expandable_segments:True``.
- :mod:`~overlap_sched.peak_memory.allocator.run`: beside an order that is still being made.
"""
