"""One model of the list."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """A model, what it stands for, and its batch: inputs, then labels.

    Attributes:
        name, kind: What it is.
        build, batch: Make it, and its batch.
        library: The package that it comes from; ``""``: none but torch.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    library: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot be built here; ``""``: it can."""
        if not self.library or find_spec(self.library) is not None:
            return ""
        return f"{self.library} is not installed: pip install {self.library}"
