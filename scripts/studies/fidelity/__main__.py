"""How near predictions are to measurements: real training steps on CPU ranks, calibrated in the same run.

    python -m scripts.studies.fidelity                          FSDP, tensor parallelism and both, on gloo; one table
    python -m scripts.studies.fidelity titan                    torchtitan's debug Llama (torch 2.15, torchtitan)
    python -m scripts.studies.fidelity --slow-network 0.1       the same over an emulated link of that many GB/s
    python -m scripts.studies.fidelity --gpu                    a layer of Llama-3-8B on one GPU: step, and the allocator's peak
    python -m scripts.studies.fidelity --record OUT.json        also write the figures, when and on what

scripts/studies/fidelity/README.md says what is compared.
"""

import sys

from scripts.studies.fidelity.compare import main

if __name__ == "__main__":
    sys.exit(main())
