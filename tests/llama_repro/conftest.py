import pytest

pytest.importorskip("torch")

from llama_repro.capture.cache import stored_problems
from llama_repro.capture.configs import find_config


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory):
    """A cache in which the tiny configuration is."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        stored_problems(find_config("tiny"))
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_cache):
    """The tiny configuration's problems, captured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tiny_cache))
        return stored_problems(find_config("tiny"))
