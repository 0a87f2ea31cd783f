"""From a problem to an order. Start with :mod:`overlap_sched.scheduler.pipeline`: the phases, one line each."""
