"""Rewrites of collectives, done to FX graphs: buckets, splits, second communicators, gathers kept or repeated.

    rewrite_graph(gm, [Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1"))])

What they make is listed in :mod:`overlap_sched.transform.rewrites`; the same rewrites done to the problem of the graph
make the problem of the rewritten graph.
"""

from overlap_sched.fx.rewrites.apply import Pending, alike_of, prepare, rerunnable, rewrite_graph

__all__ = ["Pending", "alike_of", "prepare", "rerunnable", "rewrite_graph"]
