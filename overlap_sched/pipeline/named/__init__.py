"""Schedules that have a name in the literature, one module per family; :mod:`~overlap_sched.pipeline.named.catalogue`.

A generator takes the number of ranks and of micro-batches, and knows nothing of times. Where a paper wants more
micro-batches, or a multiple of something, the next larger schedule that it allows is generated and the micro-batches
that are not there are left out of it: what is left of a valid schedule is valid.
"""
