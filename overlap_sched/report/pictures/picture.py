"""What all pictures share: an empty figure, and how it becomes a file. Colours: :mod:`overlap_sched.report.colours`."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from overlap_sched.errors import MissingExtraError, OutputError
from overlap_sched.report.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def check_plot(path: str | Path) -> None:
    """Find out before the work is done that it could not be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The path's ending names no picture format.
    """
    if _ending(path) not in FORMATS:
        raise OutputError(f"{path}: its ending does not name a picture format. End it in .png, .svg or .pdf.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "pictures need matplotlib, which is not installed: pip install 'overlap_sched[plot]'"
        ) from None


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, on white; it needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def write_picture(figure: "Figure", path: str | Path, *, tight: bool = False) -> None:
    """Write a figure in the format that the path's ending names; ``tight``: cut to what is drawn."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)  # names in any script
        figure.savefig(picture, format=_ending(path), bbox_inches="tight" if tight else None)
    write_file(path, picture.getvalue())


def _ending(path: str | Path) -> str:
    return Path(path).suffix[1:].lower()
