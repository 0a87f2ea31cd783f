"""What each rank of the test of ``scripts/fidelity.py`` runs: one short round, of one layer.

python -m tests.support.fidelity_ranks OUT.json [ARGUMENTS OF TRAIN.PY]
"""

from llama_repro.fidelity import rank
from llama_repro.training.sizes import SIZES
from overlap_sched.distributed.calibration import stopwatch
from tests.support.one_layer import ONE_LAYER

if __name__ == "__main__":
    rank.ROUNDS, rank.STEPS, rank.CALIBRATING_STEPS, stopwatch.BUDGET_S = 1, 1, 3, 0.0
    SIZES["tiny"] = ONE_LAYER
    rank.main()
