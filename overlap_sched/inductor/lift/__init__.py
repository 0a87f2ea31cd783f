"""From Inductor's scheduler nodes to a problem: what fusion has left, with its exact buffers.

- :mod:`~overlap_sched.inductor.lift.lifting`: start here: nodes in, a problem out.
- :mod:`~overlap_sched.inductor.lift.buffers`: who shares a storage, how large, who allocates it, who writes over it.
- :mod:`~overlap_sched.inductor.lift.data_flow`: what each node takes, writes, holds.
- :mod:`~overlap_sched.inductor.lift.dependencies`: what must keep its order.
- :mod:`~overlap_sched.inductor.lift.graph_order`: the order of effects and launches, where torch has lost it.
- :mod:`~overlap_sched.inductor.lift.costs`: what kernels take.
"""
