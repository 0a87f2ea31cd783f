"""What each rank runs: ``python -m tests.support.sharding.page`` runs the program in docs/fully_shard.md."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "fully_shard.md"


def main() -> None:
    """All blocks that are marked, one after the other."""
    program = "\n".join(re.findall(r"^```python run\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    exec(compile(program, str(PAGE), "exec"), globals())  # Dynamo looks names up in the module


if __name__ == "__main__":
    main()
