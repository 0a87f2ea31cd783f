"""A fuzzer of programs: random functions that communicate, executed on two ranks through every way in.

It judges the package from outside: it knows its public functions alone, and what programs mean from torch.

- :mod:`~tests.support.programs.program`: programs as values, one for every seed; which are correct; their source; the
  least program that still fails.
- :mod:`~tests.support.programs.operators`: custom operators that programs call.
- :mod:`~tests.support.programs.execution`: runs, and what is launched meanwhile; both ranks must launch alike.
- :mod:`~tests.support.programs.trial`: one program through its ways: what was found.
- :mod:`~tests.support.programs.rank`, :mod:`~tests.support.programs.run`: one rank, and schedulers that are wrong on
  purpose; both ranks, and a summary.
"""
