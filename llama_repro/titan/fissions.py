"""Files of fissions: ways to run a step in parts."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from llama_repro.errors import RecordError
from overlap_sched.transform.fission import Fission, from_data, to_data


def write_fissions(fissions: Sequence[Fission], path: Path) -> None:
    """As JSON, compressed; the same fissions give the same bytes."""
    text = json.dumps([to_data(one) for one in fissions], separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_fissions(path: Path) -> list[Fission]:
    """What :func:`write_fissions` wrote.

    Raises:
        RecordError: It is not there, or is none.
    """
    try:
        return [from_data(data) for data in json.loads(gzip.decompress(path.read_bytes()))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path} is no file of fissions: {type(error).__name__}: {error}.") from None
