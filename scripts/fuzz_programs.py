"""Run many random programs on two ranks through every way in, and say what is wrong: see ``tests/support/programs``.

    python scripts/fuzz_programs.py --programs 5000 --seed 0 --inductor-share 0.02

Exit code 1 where anything is wrong.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.programs.run import LIMIT_S, run_programs


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--inductor-share", type=float, default=0.0, help="part of them that Inductor compiles, too")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one program")
    parser.add_argument("--torch", action="store_true", help="show what torch itself cannot do, too")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run_programs(Path(folder), given.seed, given.programs, given.inductor_share, given.limit)
    print(found)
    if given.torch:
        for each in found.torch:
            print(f"torch: seed {each['seed']}, {each['way']}: {each['detail']}")
    print(f"{time.monotonic() - began:.0f} s")
    return bool(found.faults)


if __name__ == "__main__":
    sys.exit(main())
