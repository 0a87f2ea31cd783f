"""The command ``overlap-sched``: start with :mod:`overlap_sched.cli.command`."""
