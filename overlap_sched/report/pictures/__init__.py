"""Pictures, drawn with matplotlib where that is installed.

- :mod:`~overlap_sched.report.pictures.schedule`: memory and streams, before and after.
- :mod:`~overlap_sched.report.pictures.curves`: a memory plan, steps over what is varied.
- :mod:`~overlap_sched.report.pictures.picture`: what all share.
- :mod:`~overlap_sched.report.pictures.raster`: timelines cut into bins.
"""
