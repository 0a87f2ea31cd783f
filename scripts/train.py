"""Train a Llama whose collectives are in the compiled graphs.

torchrun --nproc-per-node 2 scripts/train.py --steps 20 --scheduler overlap_sched

``--help`` has all options; docs/training.md says what is printed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro.training.loop import main

if __name__ == "__main__":
    sys.exit(main())
