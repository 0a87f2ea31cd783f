"""A whole pipelined job: stages, micro-batches, actions; named schedules; replay, memory per rank, and their judge.

- :mod:`~overlap_sched.pipeline.action`, :mod:`~overlap_sched.pipeline.job`: the data; a job comes from a
  :mod:`~overlap_sched.pipeline.job_file`, the times of its stages from :mod:`~overlap_sched.pipeline.graphs`.
- :mod:`~overlap_sched.pipeline.named`: GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZBV, DualPipe, DualPipeV.
- :mod:`~overlap_sched.pipeline.replay`: times, and bytes per rank.
- :mod:`~overlap_sched.pipeline.judge`: whether a schedule is allowed, and what none can beat; shares only the data.
- :mod:`~overlap_sched.pipeline.best`: the shortest schedule within a memory limit per rank::

    layouts x cuts --named, blocks--> schedules that fit --improve--> the shortest --exact--> proved, or a bound
"""
