"""What setup.cfg cannot describe: the README as an index of packages shows it."""

import re
from pathlib import Path

from setuptools import setup


def without_files(text: str) -> str:
    """The text without pictures and links that lead to files beside it: elsewhere these are not there."""
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    long_description=without_files(Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
