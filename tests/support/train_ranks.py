"""What each rank of a training run does: ``python -m tests.support.train_ranks ARGUMENTS`` is ``scripts/train.py``."""

import sys

from llama_repro.training.loop import main

if __name__ == "__main__":
    sys.exit(main())
