"""The recorded traces in ``tests/data/profile``: of a real run, with what no test reads left out.

Made by ``OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 scripts/train.py --device cpu --steps 3 --trace DIR`` (tiny
model, fsdp, bf16, gloo, torch 2.13.0, two virtual cores of an x86-64 machine, 2026-11-22), then
``python -m tests.support.profile_traces DIR``: two of the three steps, only events that are in a compiled graph or on a
thread of gloo's, times from the first event on; of the graphs, without the settings of that machine.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "profile"
TRACES = (FOLDER / "rank0.json.gz", FOLDER / "rank1.json.gz")
GRAPHS = (FOLDER / "forward.py.gz", FOLDER / "backward.py.gz")
_STEPS = 2
_ARGS = ("External id", "Input Dims", "Input type", "Concrete Inputs")
_ABOUT = ("schemaVersion", "record_shapes", "distributedInfo")


def trimmed(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace without what no test reads."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["cat"] in ("cpu_op", "user_annotation")]
    marks = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])[:_STEPS]
    spans = [e for e in events if e["name"].startswith("## Call CompiledFxGraph")]
    first, last = marks[0]["ts"], marks[-1]["ts"] + marks[-1]["dur"]
    kept = [
        e
        for e in events
        if first <= e["ts"] < last
        and (
            e in marks
            or e["name"].startswith("gloo:")
            or any(e["tid"] == s["tid"] and s["ts"] <= e["ts"] < s["ts"] + s["dur"] for s in spans)
        )
    ]
    about = {name: trace[name] for name in _ABOUT}
    return {**about, "traceEvents": [_event(e, first) for e in sorted(kept, key=lambda e: e["ts"])]}


def _event(e: dict[str, Any], first: float) -> dict[str, Any]:
    args = {name: e["args"][name] for name in _ARGS if name in e["args"]}
    if not e["name"].startswith("_c10d_functional::"):
        args.pop("Concrete Inputs", None)
    fields = {name: e[name] for name in ("ph", "cat", "name", "pid", "tid")}
    return {**fields, "ts": round(e["ts"] - first, 3), "dur": round(e["dur"], 3), "args": args}


def main(folder: Path) -> None:
    """Write the data anew, from what ``--trace`` has written."""
    FOLDER.mkdir(exist_ok=True)
    for target in TRACES:
        with gzip.open(folder / target.name) as file:
            text = json.dumps(trimmed(json.load(file)), separators=(",", ":"))
        target.write_bytes(gzip.compress(text.encode(), mtime=0))
    for k, target in enumerate(GRAPHS):
        lines = (folder / f"graph-{k}.py").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("os.environ", "torch._"))]  # the machine's own settings
        target.write_bytes(gzip.compress("".join(kept).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
