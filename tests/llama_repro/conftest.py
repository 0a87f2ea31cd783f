import pytest

pytest.importorskip("torch")

from llama_repro.capture.cache import stored_problems
from llama_repro.capture.configs import find_config


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny configuration's problems, captured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return stored_problems(find_config("tiny"))
