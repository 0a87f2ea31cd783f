"""Many programs on two ranks, in processes that live long; a summary."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ranks import run_ranks

LIMIT_S = 60.0
"""For one program; six times that under Inductor."""


@dataclass
class Found:
    """What was found.

    Attributes:
        programs: How many have run.
        counts: Per way and status, how many.
        moved: Per way, graphs with another order than without the package.
        families: Per kind of step, programs with it that ran by some way.
        faults: Per fault: seed, way, what is wrong, program.
        torch: What torch itself cannot do, or does wrong: seed, way, why.
    """

    programs: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    torch: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        """For people."""
        rows = [f"{self.programs} programs, {len(self.faults)} faults; by way and by what it came to:"]
        rows += [f"  {way:28}{status:8}{count:8}" for (way, status), count in sorted(self.counts.items())]
        rows += [f"  {way:28}moved   {count:8}" for way, count in sorted(self.moved.items())]
        rows += ["programs with", *(f"  {name:36}{count:8}" for name, count in self.families.most_common())]
        for fault in self.faults:
            said = (f"  rank {r}: {t}" for r, t in enumerate(fault["detail"]))
            rows += ["", f"seed {fault['seed']}, {fault['way']}", *said, *fault.get("program", "").splitlines()]
        return "\n".join(rows)

    def add(self, line: dict[str, Any]) -> None:
        """What one program came to."""
        self.programs += 1
        for outcome in line["outcomes"]:
            way, status = outcome["way"], outcome["status"]
            self.counts[way, status] += 1
            self.moved[way] += outcome["moved"]
            if status != "ok":
                (self.faults if status == "fault" else self.torch).append({"seed": line["seed"], **outcome})
        if any(outcome["status"] != "torch" for outcome in line["outcomes"]):
            self.families.update(line["families"])


def run_programs(
    folder: Path, first: int, count: int, inductor_share: float = 0.0, limit_s: float = LIMIT_S, broken: str = ""
) -> Found:
    """Run the programs of so many seeds. Where a rank hangs or dies, both are started again behind that program.

    Args:
        folder: For files.
        first: The first seed.
        count: How many.
        inductor_share: Part of the programs that Inductor compiles, too.
        limit_s: For one program.
        broken: A scheduler in place of the package's: :mod:`tests.support.programs.rank`; ``""``: none.
    """
    found, seed, path = Found(), first, folder / "found.jsonl"
    while seed < first + count:
        path.write_text("")
        said = ""
        try:
            arguments = (folder, seed, first + count, inductor_share, limit_s, broken)
            run_ranks(
                "tests.support.programs.rank", *arguments, ranks=2, limit_s=count * limit_s + 600,
                TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"), TORCHINDUCTOR_VEC_ISA_OK="1",
            )  # fmt: skip
        except AssertionError as error:
            said = str(error)
        except KeyboardInterrupt:  # what there is
            count = 0
        lines = list(map(json.loads, path.read_text().splitlines()))
        for line in lines:
            if "outcomes" in line:
                found.add(line)
        if not said:
            break
        assert lines, said
        found.counts["(a rank ended)", "fault"] += 1
        found.faults.append({"seed": lines[-1]["seed"], "way": f"one of {lines[-1]['ways']}", "detail": [said[-3000:]]})
        seed = lines[-1]["seed"] + 1
    return found
