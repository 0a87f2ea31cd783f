import pytest
import torch

from llama_repro.training.data import Bytes, Synthetic, data_of, part_of
from llama_repro.training.sizes import sized
from overlap_sched.errors import OptionsError

CONFIG = sized("tiny", 1, 1, batch=3, sequence=20)


@pytest.mark.parametrize("source", ["synthetic", "file"])
def test_a_batch_depends_on_its_number_alone(source, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)) * 4)
    data = data_of(source if source == "synthetic" else str(path), CONFIG, 7)
    first, again, other = data.batch(5), data.batch(5), data.batch(6)
    assert first.tokens.shape == first.labels.shape == (20, 3)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert torch.equal(first.tokens[1:], first.labels[:-1])


def test_another_seed_gives_other_data():
    assert not torch.equal(Synthetic(CONFIG, 0).batch(0).tokens, Synthetic(CONFIG, 1).batch(0).tokens)


def test_bytes_are_windows_of_the_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    batch = Bytes(path, CONFIG, 0).batch(0)
    assert torch.equal(batch.tokens + 1, batch.labels)


def test_parts_of_a_sequence_together_are_the_sequence():
    batch = Synthetic(CONFIG, 0).batch(0)
    parts = [part_of(batch, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
    assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)


def test_files_that_cannot_be_used_are_told(tmp_path):
    with pytest.raises(OptionsError) as missing:
        data_of(str(tmp_path / "none"), CONFIG, 0)
    assert str(missing.value) == (
        f"--data {tmp_path / 'none'}: cannot be read (No such file or directory). Name a file, or use --data synthetic."
    )
    short = tmp_path / "short"
    short.write_bytes(b"x" * 20)
    with pytest.raises(OptionsError) as few:
        data_of(str(short), CONFIG, 0)
    assert str(few.value) == (
        f"--data {short}: 20 bytes are too few for sequences of 20 tokens and the one that follows. "
        "Use a longer file or a shorter --sequence."
    )
