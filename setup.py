"""The one part that setup.cfg cannot describe: the compiled allocator. All else is there."""

from setuptools import Extension, setup

ALLOCATOR = "overlap_sched/peak_memory/allocator/_compiled"

# optional: where there is no C compiler the package is installed without it, and Python does the same more slowly
setup(ext_modules=[Extension(ALLOCATOR.replace("/", "."), [f"{ALLOCATOR}.c"], optional=True)])
