"""What each rank of the test of ``scripts/fidelity.py`` runs: one short round.

python -m tests.support.fidelity_ranks OUT.json [ARGUMENTS OF TRAIN.PY]
"""

from llama_repro.fidelity import rank
from overlap_sched.distributed.calibration import stopwatch

if __name__ == "__main__":
    rank.ROUNDS, rank.STEPS, rank.CALIBRATING_STEPS, stopwatch.BUDGET_S = 1, 1, 3, 0.0
    rank.main()
