"""Plug-in of DeepSpeed's DeepCompile: a pass that orders the graphs of ZeRO-3.

::

    overlap_sched.deepspeed.register()                      before engine.compile
    engine.compile(schedule=[(0, ["zero3_compile", "overlap_sched"])])

DeepCompile writes gathers, releases and reductions into the graphs that torch compiles (``dc.allgather_param``,
``wait_allgather``, ``release_param``, ``reduce_grad``, ``end_backward``). Our pass reorders such a graph, as all ranks
agree, or leaves it as it was.

What each operator does is in :mod:`overlap_sched.fx.catalogue`. DeepSpeed (0.19.8 is the one that we know) is imported
by :func:`register` alone.
"""

from overlap_sched.deepspeed.graph_pass import NAME, order_pass, register

__all__ = ["NAME", "order_pass", "register"]
