"""How much memory an order needs, step by step.

A storage is live from the step that allocates it to the last step that uses it, both included: a step's
outputs are there before its dead inputs are gone, so the peak counts both. Inputs are live from the start,
pinned storages to the end; so are inputs that nothing uses and what an output node allocates::

    EXAMPLE, original order, MiB    w x gather full mm dgrad wgrad scatter grad output
      w      1 (pinned)             1 1   1     1    1   1     1      1      1    1
      x      4                      4 4   4     4    4   4     4
      full   8                            8     8    8   8
      g      4                                       4   4     4
      dx     4                                           4     4      4      4    4
      dw     8                                                 8      8      8
      ds     1                                                        1      1    1
      live                          5 5  13    13   17  21    21     14     14    6      peak 21, first at dgrad

Both memory models are counted by this one rule; they differ in what the problem says a wait allocates and uses.
"""

from collections.abc import Sequence

from overlap_sched.problem import Kind, Problem


def memory_profile(problem: Problem, order: Sequence[int]) -> list[int]:
    """Bytes live while each step of the order runs; as long as the order."""
    nodes = problem.nodes
    size = [storage.bytes for storage in problem.storages]
    pinned = [storage.pinned for storage in problem.storages]
    users_left = [0] * len(size)
    live = 0
    for node in nodes:
        for s in node.use:
            users_left[s] += 1
        if node.kind is Kind.INPUT:
            live += sum(size[s] for s in node.alloc)
    profile = []
    for v in order:
        node = nodes[v]
        if node.kind is not Kind.INPUT:
            for s in node.alloc:
                live += size[s]
        profile.append(live)
        for s in node.use:
            users_left[s] -= 1
            if users_left[s] == 0 and not pinned[s]:
                live -= size[s]
        if node.alloc and node.kind not in (Kind.INPUT, Kind.OUTPUT):
            for s in node.alloc:
                # nobody ever uses it: gone when the step is over (a pin protects what is used)
                if users_left[s] == 0 and s not in node.use:
                    live -= size[s]
    return profile


def peak_memory(problem: Problem, order: Sequence[int]) -> tuple[int, int]:
    """The most bytes live at once, and the first position of the order at which they are."""
    profile = memory_profile(problem, order)
    peak = max(profile)
    return peak, profile.index(peak)
