"""Hide communication behind compute without ever costing memory.

>>> import overlap_sched
>>> result = overlap_sched.schedule(overlap_sched.EXAMPLE)
>>> round(result.original.step_us), round(result.scheduled.step_us)
(190, 120)

The core (this package's top level) never imports torch; ``overlap_sched.fx`` does.
"""
