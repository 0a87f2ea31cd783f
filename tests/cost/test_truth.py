"""The study that holds prices against public measurements."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scripts.studies.truth.__main__ import TRUTH, Comparison, compare, main, summarize


def test_rows_are_priced_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{name}.csv" for name in ("kernels", "collectives", "steps")]
    for file in files:
        header, *rows = (TRUTH / file.name).read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join((header, *[row for row in rows if "H100" in row][:5])), encoding="utf-8")
    assert main([*map(str, files), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    counts = Counter((one["table"], one["rows_are"]) for one in printed["rows"])
    assert counts == {("Kernels", "held out"): 5, ("Collectives", "fitted"): 5}
    assert printed["skipped"] == {"whole steps are not predicted here": 5}
    assert main([*map(str, files), "--plot", str(tmp_path / "truth.png")]) == 0
    assert (tmp_path / "truth.png").stat().st_size > 0
    ratios = [Comparison(**one).ratio for one in printed["rows"] if one["table"] == "Collectives"]
    quartiles = " | ".join(f"{np.quantile(ratios, part):.2f}" for part in (0.25, 0.5, 0.75))
    assert f"| Collectives | all |  | fitted | 5 | {quartiles} |" in capsys.readouterr().out


@pytest.mark.parametrize(("table", "rows_are", "share", "error"), [
    ("collectives", "fitted", 0.92, 0.097), ("collectives", "held out", 0.9, 0.095),
    ("expert_parallel", "fitted", 1.0, 0.032), ("expert_parallel", "held out", 1.0, 0.056),
])  # fmt: skip
def test_most_collectives_are_near_what_others_measured(table: str, rows_are: str, share: float, error: float) -> None:
    with (TRUTH / f"{table}.csv").open(encoding="utf-8") as file:
        found = [one.ratio for one in compare(csv.DictReader(file), Counter()) if one.rows_are == rows_are]
    assert len(found) >= 10
    assert np.mean([0.8 <= ratio <= 1.25 for ratio in found]) >= share
    assert np.mean(np.abs(np.log(found))) <= error


def test_shares_and_columns_of_no_table() -> None:
    assert summarize([0.5, 0.8, 1.0, 1.25, 1.3]) == ("5", "0.80", "1.00", "1.25", "60%")
    skipped: Counter[str] = Counter()
    assert list(compare([{"source": "somebody", "us": "1"}], skipped)) == []
    assert skipped == {"their columns are not known": 1}
