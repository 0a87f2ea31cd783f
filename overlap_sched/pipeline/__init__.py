"""A whole pipelined job: stages, micro-batches, actions; named schedules; replay, memory per rank, and their judge.

- :mod:`~overlap_sched.pipeline.action`, :mod:`~overlap_sched.pipeline.job`, :mod:`~overlap_sched.pipeline.schedule`:
  the data.
- :mod:`~overlap_sched.pipeline.named`: GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZBV, DualPipe, DualPipeV.
- :mod:`~overlap_sched.pipeline.replay`, :mod:`~overlap_sched.pipeline.memory`: times, and bytes per rank.
- :mod:`~overlap_sched.pipeline.judge`: all of it a second time, of which only the data is shared.
"""
