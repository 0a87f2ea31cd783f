"""From Inductor's scheduler nodes to a problem: what fusion has left, with its exact buffers.

- :mod:`~overlap_sched.inductor.lift.lifting`: start here: nodes in, a problem out.
- :mod:`~overlap_sched.inductor.lift.buffer_reader`: what each name stands for.
- :mod:`~overlap_sched.inductor.lift.buffers`: who shares a storage, how large, who allocates it.
- :mod:`~overlap_sched.inductor.lift.in_place`: kernels that write over an input.
- :mod:`~overlap_sched.inductor.lift.saved`: inputs of backward that others hold, too.
- :mod:`~overlap_sched.inductor.lift.data_flow`: what each node takes, writes, holds.
- :mod:`~overlap_sched.inductor.lift.dependencies`: what must keep its order.
- :mod:`~overlap_sched.inductor.lift.effects`: the order of effects, where torch has lost it.
- :mod:`~overlap_sched.inductor.lift.costs`: what kernels take.
"""
