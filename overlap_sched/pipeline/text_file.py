"""Files of text that a pipelined job is read from: the job itself, and schedules."""

from pathlib import Path

from overlap_sched.errors import PipelineError
from overlap_sched.problem.file import DamagedError, Limits, read_bytes


def read_text(path: str | Path, limits: Limits, wanted: str, form: str) -> str:
    """Read a file in UTF-8, packed or not.

    Args:
        path: The file.
        limits: How large it may be.
        wanted: What is to be named, for errors: ``"a TOML file of a job"``.
        form: What it is made of: ``"A job is TOML in UTF-8"``.

    Raises:
        PipelineError: It cannot be read, or is not text.
        InputTooLargeError: It is larger than the limit.
    """
    try:
        return read_bytes(path, limits).decode("utf-8")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read ({error.strerror}). Name {wanted}.") from None
    except (UnicodeDecodeError, DamagedError):
        raise PipelineError(f"{path}: is not text. {form}.") from None
