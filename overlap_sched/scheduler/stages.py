"""All stages, in the order in which they run, each with what it is for; ``ALL.without("relink")`` leaves one out."""

from overlap_sched.scheduler.beam_search import search_small
from overlap_sched.scheduler.fill_links import links_filled
from overlap_sched.scheduler.fill_stalls import stalls_filled
from overlap_sched.scheduler.polish import FILL_TAIL, SHIFT, shifted, tail_filled
from overlap_sched.scheduler.portfolio import as_if_alone, first_run, more_runs, of_chains
from overlap_sched.scheduler.relink import relinked
from overlap_sched.scheduler.reserve import shifted_less_far
from overlap_sched.scheduler.reserve_runs import (
    as_it_was,
    beside_an_allocator,
    mended,
    mended_at_any_price,
    mended_there,
    tighter_at_any_price,
    unshifted,
    within_tighter_budgets,
)
from overlap_sched.scheduler.reserve_walks import walked
from overlap_sched.scheduler.stage import Stage, Stages

ALL = Stages(
    live=(
        Stage("first run", "a list scheduler that hides what it can", first_run),
        Stage("chains", "several long chains: runs from an order that goes from one to the other", of_chains),
        Stage("second runs", "which policy suits a graph is known only afterwards", more_runs),
        Stage("runs as if alone", "under contention: what is made as if there were none may be shorter", as_if_alone),
        Stage("beam search", "small graphs: all that looks promising, beside one greedy choice", search_small),
        Stage(SHIFT, "waits later and launches sooner: robust against wrong predictions", shifted),
        Stage(FILL_TAIL, "compute deferred behind the last launch hides the end", tail_filled),
        Stage("relink", "far from the bound: what a run moves too far, moved part of the way", relinked),
    ),
    fitting=(
        Stage("unshifted order", "it fragments less", unshifted),
        Stage(
            "gate run",
            "the best run once more, beside an allocator that may reserve no more than now",
            beside_an_allocator,
        ),
        Stage("repairs", "what holds the room that is lacking, moved out of the way", mended),
        Stage("tighter budgets", "less in flight leaves fewer holes", within_tighter_budgets),
        Stage("repairs", "of those", mended_there),
        Stage("original order", "it can be held itself, and may be short enough", as_it_was),
        Stage("random walk", "to orders near the best that can be held, or to shorter ones", walked),
    ),
    at_any_price=(
        Stage("tighter budgets", "however long", tighter_at_any_price),
        Stage("repairs", "of those", mended_at_any_price),
        Stage("random walk", "to orders near the best that run", walked),
    ),
    fitted=(Stage("shorter shifts", "as far as the allocator lets them go", shifted_less_far),),
    last=(
        Stage(
            "fill stalls",
            "compute goes behind what is waited for at once, or that skips the queue",
            stalls_filled,
        ),
        Stage("fill links", "the network binds: launches moved to where the busiest link is idle", links_filled),
    ),
)
QUICK = ALL.without("random walk", "fill links")
"""Without what takes longest: where orders are only compared."""
