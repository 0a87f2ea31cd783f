"""The one part that setup.cfg cannot describe: the compiled allocator. All else is there."""

from pathlib import Path

from setuptools import Extension, setup

ALLOCATOR = Path("overlap_sched/peak_memory/allocator")
COMPILED = Extension(
    "overlap_sched.peak_memory.allocator._compiled",
    sources=[str(ALLOCATOR / "compiled/module.c")],
    depends=[str(header) for header in sorted(ALLOCATOR.glob("compiled/*.h"))],
    optional=True,  # without a C compiler the package is installed without it, and Python does the same more slowly
)

setup(ext_modules=[COMPILED])
