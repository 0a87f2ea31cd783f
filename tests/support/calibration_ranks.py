"""What each rank of the tests of ``calibrate`` runs: the command itself, as torchrun starts it.

    python -m tests.support.calibration_ranks ARGUMENTS OF OVERLAP-SCHED

Ends with the exit status of the command.
"""

import sys

import torch

from overlap_sched.cli.command import main
from overlap_sched.distributed import calibration

if __name__ == "__main__":
    torch.set_num_threads(1)
    calibration.BUDGET_S = 0.0  # the fewest repetitions: the tests look at what is measured, not at how long it takes
    sys.exit(main(sys.argv[1:]))
