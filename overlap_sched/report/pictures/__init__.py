"""Pictures, drawn with matplotlib where that is installed.

- :mod:`~overlap_sched.report.pictures.schedule`: memory and streams, before and after.
- :mod:`~overlap_sched.report.pictures.memory`: a memory plan.
- :mod:`~overlap_sched.report.pictures.frontier`: step against peak.
- :mod:`~overlap_sched.report.pictures.whatif`: steps on other machines.
- :mod:`~overlap_sched.report.pictures.picture`: what all share.
- :mod:`~overlap_sched.report.pictures.raster`: timelines cut into bins.
"""
