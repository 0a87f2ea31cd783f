"""A cluster: what it is made of, its file, where groups lie on it, and the cost model that comes out.

- :mod:`~overlap_sched.cost.cluster.description`: nodes, ranks, devices, links: all else here is about it.
- :mod:`~overlap_sched.cost.cluster.file`: reads and writes it; the shipped ones are in ``shipped``.
- :mod:`~overlap_sched.cost.cluster.placement`: on which nodes the ranks of a process group are.
- :mod:`~overlap_sched.cost.cluster.cost_model`: what compute and collectives take on it.
- :mod:`~overlap_sched.cost.cluster.contention`: what they cost each other.
"""
