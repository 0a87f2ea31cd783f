"""All stages, in the order in which they run, each with what it is for; ``ALL.without("relink")`` leaves one out."""

from overlap_sched.scheduler.beam_search import search_small
from overlap_sched.scheduler.fill_stalls import stalls_filled
from overlap_sched.scheduler.portfolio import first_run, more_runs, of_chains
from overlap_sched.scheduler.relink import relinked
from overlap_sched.scheduler.shift import shift_best
from overlap_sched.scheduler.stage import Stage, Stages

ALL = Stages(
    (
        Stage("first run", "a list scheduler that hides what it can", first_run),
        Stage("chains", "several long chains: runs from an order that goes from one to the other", of_chains),
        Stage("second runs", "which policy suits a graph is known only afterwards", more_runs),
        Stage("beam search", "small graphs: all that looks promising, beside one greedy choice", search_small),
        Stage("shift", "waits later and launches sooner: robust against wrong predictions", shift_best),
        Stage("relink", "far from the bound: what a run moves too far, moved part of the way", relinked),
        Stage("fill stalls", "compute goes behind what is waited for at once, or that skips the queue", stalls_filled),
    )
)
