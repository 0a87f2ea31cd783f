"""A fuzzer of programs: random functions that communicate, executed on two ranks through every way in.

It judges the package from outside: it knows its public functions alone, and what programs mean from torch.

- :mod:`~tests.support.programs.kinds`: what a step of a program can be.
- :mod:`~tests.support.programs.program`: programs as values; their source.
- :mod:`~tests.support.programs.rules`: which programs are correct: nothing in flight is read or written.
- :mod:`~tests.support.programs.generate`: a program for every seed.
- :mod:`~tests.support.programs.operators`: custom operators that programs call.
- :mod:`~tests.support.programs.flight`: what is launched while a program runs; both ranks must launch alike.
- :mod:`~tests.support.programs.execution`, :mod:`~tests.support.programs.launches`: runs, and what a graph launches.
- :mod:`~tests.support.programs.ways`: the ways in.
- :mod:`~tests.support.programs.trial`: one program through its ways: what was found.
- :mod:`~tests.support.programs.broken`: schedulers that are wrong on purpose.
- :mod:`~tests.support.programs.shrink`: the least program that still fails.
- :mod:`~tests.support.programs.rank`, :mod:`~tests.support.programs.run`: one rank; both of them, and a summary.
"""
