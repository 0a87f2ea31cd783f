"""``python -m overlap_sched`` is the command ``overlap-sched``."""

import sys

from overlap_sched.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
