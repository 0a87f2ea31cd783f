"""Measuring a cluster: how long its collectives and kernels take, and what they cost each other.

    with joined("auto") as machine:
        tables, failed = measure(machine, wishes, known, save, tell)

``machine`` (the ranks), ``stopwatch`` (timing one thing), ``collectives`` (their groups, and what starts them),
``kernels`` (what computes), ``slowdown`` (collectives alone, beside compute, and several of a group at once),
``measuring`` (all of it, with what is known left out). The times are data of
:mod:`overlap_sched.cost.measured.table`, kept in a cluster file.
"""
