"""What was measured on a machine, as a cost model.

- :mod:`~overlap_sched.cost.measured.table`: times, and times between them.
- :mod:`~overlap_sched.cost.measured.tabled`: a model that asks the tables first.
- :mod:`~overlap_sched.cost.measured.calibrated`: rates of device and links, for what no table covers.
"""
