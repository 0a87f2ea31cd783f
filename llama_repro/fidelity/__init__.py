"""How near predictions are to what is measured: graphs of real training steps on CPU ranks, calibrated in the same run.

``cores`` (where ranks run), ``clock`` (how long graphs and their waits take), ``shapes`` (what is to be calibrated),
``prediction`` (a graph priced anew), ``rank`` (what each rank runs), ``compare`` (all cases, one table), ``table``.
"""
