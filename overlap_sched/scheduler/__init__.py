"""From a problem to an order.

To be read from the top::

    driver          the whole way, a line per phase; ALL lists the stages
    list_scheduler  THE main loop: choose a node, run it
    admission       what memory admits: the completion profile
    ready, task     the sets of ready nodes, and the keys by which they are sorted
    runs, chains    which runs of the loop are made, and from which orders
    beam_search     what small graphs get besides
    polish          stages that improve a finished order: shift, relink, fill stalls
    restrictions    a device, groups kept apart, another rank's launches
    explain         why each collective is where it is

From the call to the loop: ``schedule``, ``best_order``, ``Stages.run``, a stage (``first_run``), ``list_schedule``.
"""
