"""Training data: synthetic phrases or a file's bytes. A batch depends on its number alone, so resumes are exact."""

from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from llama_repro.capture.configs import LlamaConfig
from overlap_sched.errors import OptionsError

BYTE_VALUES = 256
_PHRASES, _PHRASE_LENGTH = 64, 16


class Batch(NamedTuple):
    """(sequence, batch) int64 each; a label is the token that follows."""

    tokens: Tensor
    labels: Tensor


class Data(Protocol):
    """A source of batches."""

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of the whole job: the same on whichever rank and step it is used."""


class Synthetic:
    """Sixty-four fixed phrases of sixteen tokens in random sequence: something to learn, made from a seed."""

    def __init__(self, config: LlamaConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        generator = torch.Generator().manual_seed(seed)
        self._phrases = torch.randint(config.vocabulary, (_PHRASES, _PHRASE_LENGTH), generator=generator)

    def batch(self, number: int) -> Batch:
        """See :class:`Data`."""
        length = self._config.sequence + 1
        generator = _generator(self._seed, number)
        chosen = torch.randint(_PHRASES, (self._config.batch, -(-length // _PHRASE_LENGTH)), generator=generator)
        return _batch(self._phrases[chosen].flatten(1)[:, :length])


class Bytes:
    """Random windows of a file, a token per byte.

    Raises:
        OptionsError: The file cannot be read, is shorter than a sequence, or the vocabulary has no room for bytes.
    """

    def __init__(self, path: Path, config: LlamaConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        try:
            text = path.read_bytes()
        except OSError as error:
            raise OptionsError(
                f"--data {path}: cannot be read ({error.strerror}). Name a file, or use --data synthetic."
            ) from None
        if len(text) <= config.sequence:
            raise OptionsError(
                f"--data {path}: {len(text)} bytes are too few for sequences of {config.sequence} tokens and the one "
                "that follows. Use a longer file or a shorter --sequence."
            )
        if config.vocabulary < BYTE_VALUES:
            raise OptionsError(f"--data {path}: a vocabulary of {config.vocabulary} has no room for {BYTE_VALUES}.")
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def batch(self, number: int) -> Batch:
        """See :class:`Data`."""
        length = self._config.sequence + 1
        starts = torch.randint(
            len(self._text) - length + 1, (self._config.batch, 1), generator=_generator(self._seed, number)
        )
        return _batch(self._text[starts + torch.arange(length)].long())


def data_of(source: str, config: LlamaConfig, seed: int) -> Data:
    """``"synthetic"``, or the name of a file.

    Raises:
        OptionsError: See :class:`Bytes`.
    """
    return Synthetic(config, seed) if source == "synthetic" else Bytes(Path(source), config, seed)


def part_of(batch: Batch, tp_rank: int, tp: int) -> Batch:
    """A tensor-parallel rank's part of the sequence."""
    return Batch(*(x.chunk(tp)[tp_rank].contiguous() for x in batch))


def _batch(rows: Tensor) -> Batch:
    """From (batch, sequence + 1)."""
    return Batch(rows[:, :-1].t().contiguous(), rows[:, 1:].t().contiguous())


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + number + 1) % 2**63)
