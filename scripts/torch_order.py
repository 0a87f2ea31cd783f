#!/usr/bin/env python3
"""Write the order that torch's own overlap pass finds for a problem, for ``overlap-sched report --beside``.

The pass runs on the problem's times with bucketing off (llama_repro/harness/torch_pass.py); nothing needs a GPU::

    python scripts/torch_order.py scripts/instances/llama3_8b_fw_64_2d.json.gz torch.json
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS
from llama_repro.harness.torch_pass import torch_order
from overlap_sched.problem.file import read_problem
from overlap_sched.report.files import write_file


def main() -> None:
    """Write the file, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", metavar="PROBLEM.json", help="a problem file, may be gzipped")
    parser.add_argument("out", metavar="ORDER.json", help="a JSON list of node names")
    parser.add_argument(
        "--caps", choices=(DEFAULT_CAPS, NO_CAPS), default=DEFAULT_CAPS, help="the memory that torch's pass may add"
    )
    options = parser.parse_args()
    problem = read_problem(options.problem)
    found = torch_order(problem, options.caps)
    write_file(options.out, (json.dumps(problem.names(found.order), separators=(",", ":")) + "\n").encode())
    print(f"{options.out}: the order of torch's pass, {options.caps}" + (f" ({found.remark})" if found.remark else ""))


if __name__ == "__main__":
    main()
