"""Sharded parameters whose collectives are in the graph: what ``fully_shard`` does, where a compiler can see it.

- :mod:`~overlap_sched.sharding.entry`: :func:`shard`, with the arguments of ``fully_shard``, and its checks.
- :mod:`~overlap_sched.sharding.gather`: how one parameter lies on a mesh; the collectives, forward and backward.
- :mod:`~overlap_sched.sharding.modules`: properties in the parameters' places, which gather them; gradients that are
  not reduced yet; reads that ranks compare.

After SimpleFSDP (Zhang et al. 2024, arXiv 2411.00284) and its code in torchtitan. It differs in what is kept (the same
DTensors as ``fully_shard``, rows that do not divide by the ranks too) and in what is computed (the gradient's mean, in
the policy's types, by ``fully_shard``'s own rules).
"""

from overlap_sched.sharding.entry import shard
from overlap_sched.sharding.modules import ShardedModule

__all__ = ["ShardedModule", "shard"]
