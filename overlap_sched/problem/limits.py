"""How large an input may be: files are not trusted, and a small one may unpack to a huge one."""

from dataclasses import dataclass

from overlap_sched.errors import OptionsError


@dataclass(frozen=True)
class Limits:
    """Larger inputs are refused, with the limit in the error.

    Attributes:
        input_bytes: Of a file, once decompressed. Problem files have 150 to 250 bytes per node.
        nodes: Of a problem file or a dump. Each part of an operator's list of results (``unbind``, ``split``) counts.

    Raises:
        OptionsError: A limit is below 1.
    """

    input_bytes: int = 2**29
    nodes: int = 2_000_000

    def __post_init__(self) -> None:
        for name, value in (("input_bytes", self.input_bytes), ("nodes", self.nodes)):
            if value < 1:
                raise OptionsError(f"the limit of {name} is {value}; it is 1 or more.")


DEFAULT_LIMITS = Limits()
