"""``scripts/train.py`` on a model of one layer, half as much to compile: ``python -m tests.support.one_layer``."""

import sys
from dataclasses import replace

from llama_repro.training.loop import main
from llama_repro.training.sizes import SIZES

ONE_LAYER = replace(SIZES["tiny"], layers=1)

if __name__ == "__main__":
    SIZES["tiny"] = ONE_LAYER
    sys.exit(main())
