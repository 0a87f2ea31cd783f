"""torchtitan's precompilation on a CPU, with our pass: ``python -m tests.support.titan.precompile ARGUMENTS``.

Beside the artifact it writes ``order.json``: the names of the nodes in the order that was planned.
"""

import json
import sys
from pathlib import Path

from tests.support.titan.cpu import Precompile, on_cpu


def main() -> None:
    """``overlap_sched.titan.precompile`` with the arguments of this command."""
    on_cpu()
    import torch
    import torchtitan.experiments.graph_trainer.precompile_main as precompile_main
    from torchtitan.tools.logging import init_logger

    import overlap_sched
    from overlap_sched.titan import precompile
    from tests.support.reports import report_data

    torch.set_num_threads(1)
    init_logger()
    precompile_main.torch = Precompile()
    precompile.main()
    (report,) = overlap_sched.reports()
    folder = sys.argv[sys.argv.index("--compile.precompile_artifact_dir") + 1]
    Path(folder, "order.json").write_text(json.dumps(report_data(report)["order"]))


if __name__ == "__main__":
    main()
