"""Files of fissions: ways to run a step in parts."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from llama_repro.errors import RecordError
from overlap_sched.errors import RewriteError
from overlap_sched.transform.rewrites import Fission, from_json, to_json


def write_fissions(fissions: Sequence[Fission], path: Path) -> None:
    """As JSON, compressed; the same fissions give the same bytes."""
    text = json.dumps(to_json(fissions), separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_fissions(path: Path) -> list[Fission]:
    """What :func:`write_fissions` wrote.

    Raises:
        RecordError: It is not there, or is none.
    """
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        return list(from_json([{"kind": "fission"} | data for data in found]))  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError, RewriteError) as error:
        raise RecordError(f"{path} is no file of fissions: {type(error).__name__}: {error}.") from None
