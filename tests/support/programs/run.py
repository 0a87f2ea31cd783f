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
        statuses = ("ok", "fault", "torch")
        rows = [f"{self.programs} programs, {len(self.faults)} faults", ""]
        rows.append(f"{'way in':28}" + "".join(f"{name:>8}" for name in statuses) + f"{'moved':>8}")
        for way in sorted({way for way, _ in self.counts}):
            rows.append(f"{way:28}" + "".join(f"{self.counts[way, s]:8}" for s in statuses) + f"{self.moved[way]:8}")
        rows += ["", "programs with", *(f"  {name:32}{number:8}" for name, number in self.families.most_common()), ""]
        for fault in self.faults:
            said = (f"  rank {r}: {t}" for r, t in enumerate(fault["detail"]))
            rows += [f"seed {fault['seed']}, {fault['way']}", *said, *fault.get("program", "").splitlines(), ""]
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
    found, seed = Found(), first
    while seed < first + count:
        path = folder / "found.jsonl"
        path.unlink(missing_ok=True)
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
        lines = list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
        for line in lines:
            if "outcomes" in line:
                found.add(line)
        if not said:
            break
        if not lines:
            raise AssertionError(said)
        last = lines[-1].get("begins", lines[-1].get("seed"))
        how = ", ".join(lines[-1].get("ways", ()))
        found.counts["(a rank ended)", "fault"] += 1
        found.faults.append({"seed": last, "way": f"one of {how}", "detail": [said[-3000:]]})
        seed = last + 1
    return found
