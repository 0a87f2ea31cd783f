"""torch's caching allocator, replayed without a GPU.

- :mod:`~overlap_sched.peak_memory.allocator.reserved`: start here: what an order reserves, and in how much it runs.
- :mod:`~overlap_sched.peak_memory.allocator.caching`: the allocator.
- :mod:`~overlap_sched.peak_memory.allocator.expandable`: the same with ``expandable_segments:True``.
"""
