"""Measuring a cluster: how long its collectives and kernels take.

    with joined("auto") as machine:
        tables, failed = measure(machine, wishes, tell)

``machine`` (the ranks), ``stopwatch`` (timing one thing), ``collectives`` (their groups, and what starts them),
``kernels`` (what computes), ``measuring`` (all of it). The times are data of
:mod:`overlap_sched.cost.table`, kept in a cluster file.
"""
