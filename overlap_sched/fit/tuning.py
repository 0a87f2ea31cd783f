"""The numbers that tune the choice of values that are not kept."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Parts and counts; for fits of whole steps and of joint graphs.

    Behind them, where measured: how much longer the step within a memory limit (or higher the peak within a step limit)
    is with another value, of 45 fits: ResNet-50, U-Net and U-Net++ of scripts/studies/fit, random steps, FSDP steps.
    """

    aims: tuple[float, ...] = (1.0, 0.97, 0.92)
    """Parts of the limit that choices aim at, for room to hide what is in flight. Only 1: +8.3 %, 4 fits."""
    weights: tuple[float, ...] = (0.05, 0.5)
    """What a hidden microsecond of a copy to the host counts as. Only 0.05: +19 %, 4 fits, +1.1 % on average."""
    high: tuple[float, ...] = (0.0, 0.5)
    """Above the limit, what counts fully: all, or what is above this part of the most. Only 0: +9.1 %, 2 fits; only
    0.5: +55 %, 7 fits."""
    little: int = 8
    """What is not high counts this part of its bytes: 1/8."""
    in_vain: int = 1_000
    """Values priced in vain before one is taken that may not be the best any more: the price of a choice."""
    smallest: float = 1e-5
    """A value of less than this part of the limit stays. 0: +1.4 %, a step of Llama-3-8B in 13.2 GB."""
    least_us: float = 0.5
    """No choice costs less. 0.001: +0.5 % on average."""
    longest: int = 60
    """Nodes that run again for one value, at most: the price of a look."""
    large_nodes: int = 4_000
    """Larger graphs are tried in fewer ways, and not searched for the lowest peak: the price of a fit."""
    halved_nodes: int = 175_000
    """Halvings of a range of limits, times nodes: the price of a fit within a step limit."""
    lowered: int = 3
    """Lower limits that are looked within where no plan within the limit runs in torch's allocator: the price of each
    is as many plans as at first."""
    joint_cuts: int = 6
    """Cuts of a joint graph that are aimed lower, and halvings of its limits: the price of each is one partition."""


TUNING = Tuning()
