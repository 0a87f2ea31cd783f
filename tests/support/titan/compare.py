"""Train with torchtitan's GraphTrainer on CPU ranks, with our pass and without; one table (``scripts/titan.sh``)."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.titan.jobs import DEEPSEEK, EP, LLAMA, OURS, TP, Job, train

MODELS = {
    "Llama-3 debug, FSDP 2": (2, LLAMA),
    "DeepSeek-v3 debug, FSDP 2, EP 2": (2, DEEPSEEK + EP),
    "Llama-3 debug, FSDP 2 x TP 2": (4, LLAMA + TP),
}


def main() -> None:
    """Print the table; an error where a loss differs."""
    print("| model | losses of 3 steps | exposed, predicted | peak, predicted | kernels between launch and wait |")
    print("| --- | --- | --- | --- | --- |")
    differs = False
    for model, (ranks, arguments) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = train(Path(folder), [Job("plain", arguments), Job("ours", arguments + OURS)], ranks)
        plain, ours = found["plain"], found["ours"]
        same = all(a["losses"] == b["losses"] for a, b in zip(plain, ours, strict=True))
        differs |= not same
        print(f"| {model} | {'equal to the last bit' if same else 'DIFFER'} | {_row(plain[0], ours[0])} |", flush=True)
    sys.exit(differs)


def _row(plain: dict[str, Any], ours: dict[str, Any]) -> str:
    (report,) = ours["reports"]
    if not report["changed"]:
        return f"left as it was: {report['reason']} | | "
    before, after = report["original"], report["scheduled"]
    return (
        f"{before['exposed_us'] / 1e3:.3f} -> {after['exposed_us'] / 1e3:.3f} ms | "
        f"{before['peak_bytes'] / 2**20:.1f} -> {after['peak_bytes'] / 2**20:.1f} MiB | "
        f"{plain['between']} -> {ours['between']}"
    )


if __name__ == "__main__":
    main()
