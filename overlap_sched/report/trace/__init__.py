"""Traces for Perfetto: simulated and measured steps as processes, memory as counters.

- :mod:`~overlap_sched.report.trace.file`: start here: the file, and memory over time as its counters.
- :mod:`~overlap_sched.report.trace.rows`: one order as a process.
- :mod:`~overlap_sched.report.trace.measured`: steps of torch profiler traces.
- :mod:`~overlap_sched.report.trace.events`: the format.
"""
