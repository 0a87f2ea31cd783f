"""How near predictions are to measurements: real training steps on CPU ranks, calibrated in the same run.

    scripts/fidelity.py                          FSDP, tensor parallelism and both, on gloo; one table
    scripts/fidelity.py titan                    torchtitan's debug Llama (torch 2.15, torchtitan)
    scripts/fidelity.py --slow-network 0.1       the same over an emulated link of that many GB/s
    scripts/fidelity.py --gpu                    a layer of Llama-3-8B on one GPU: step, and the allocator's peak
    scripts/fidelity.py --record OUT.json        also write the figures, when and on what

docs/fidelity.md says what is compared.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro.fidelity.compare import main

if __name__ == "__main__":
    sys.exit(main())
