"""The shortest schedule of a pipelined job within a memory limit per rank: found greedily, proved where it is small.

    layouts x policies --greedy--> schedules that fit --improve--> the shortest --exact (ortools)--> proved, or a bound

- :mod:`~overlap_sched.pipeline.search.greedy`: a list scheduler for ranks, by one policy.
- :mod:`~overlap_sched.pipeline.search.improve`: actions moved one by one, while the step becomes shorter.
- :mod:`~overlap_sched.pipeline.search.exact`: the optimum of small jobs, as a constraint program.
- :mod:`~overlap_sched.pipeline.search.best`: all of them, for a job.
"""
