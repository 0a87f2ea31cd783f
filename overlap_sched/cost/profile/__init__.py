"""Times of nodes from torch profiler traces of real steps.

- :mod:`~overlap_sched.cost.profile.trace_file`: the events of a file; nothing of it is trusted.
- :mod:`~overlap_sched.cost.profile.kineto`: operators, kernels and collectives of each step.
- :mod:`~overlap_sched.cost.profile.skew`: several ranks: the skew of arrival taken out.
- :mod:`~overlap_sched.cost.profile.runs`: which calls are a graph's.
- :mod:`~overlap_sched.cost.profile.times`: times of its nodes.
- :mod:`~overlap_sched.cost.profile.profiled`: a problem with these times.
"""
