"""What setup.cfg cannot describe: the compiled allocator, and the README as an index of packages shows it."""

import re
from pathlib import Path

from setuptools import Extension, setup

ALLOCATOR = Path("overlap_sched/peak_memory/allocator")
COMPILED = Extension(
    "overlap_sched.peak_memory.allocator._compiled",
    sources=[str(ALLOCATOR / "compiled/module.c")],
    depends=[str(header) for header in sorted(ALLOCATOR.glob("compiled/*.h"))],
    optional=True,  # without a C compiler the package is installed without it, and Python does the same more slowly
)


def without_files(text: str) -> str:
    """The text without pictures and links that lead to files beside it: elsewhere these are not there."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    ext_modules=[COMPILED],
    long_description=without_files(Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
