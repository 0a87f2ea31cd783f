"""From a problem to an order. Start with :mod:`overlap_sched.scheduler.driver`: the phases, one line each."""
