"""Graph-level dimensions: how a cut of one value goes through operators to others. Shapes in, cuts out; no torch.

After the dimension graph of MAGIS (ASPLOS 2024, section 4.2): its vertices are (value, dimension), its edges lead
through operators, and a connected part of it is one dimension of the whole graph: batch, tokens, heads. Ours are
(value, dimension, block): reshaping and gathering put several dimensions into one, and a part is then not a range of it
but every so many rows (:class:`~overlap_sched.transform.dimension_graph.cut.Cut`).

What each operator does is said by :mod:`overlap_sched.fx.dimensions`; this package is the arithmetic behind it.
"""
