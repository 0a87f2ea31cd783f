"""What changed between two results: orders, plans, records of runs.

- :mod:`~overlap_sched.report.diff.figures`: what all of them come down to.
- :mod:`~overlap_sched.report.diff.orders`: two orders of one problem, replayed.
- :mod:`~overlap_sched.report.diff.records`: two plans, or two records.
- :mod:`~overlap_sched.report.diff.text`: for people.
"""
