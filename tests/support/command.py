"""The command in this process."""

from overlap_sched.cli.command import main


def run(*arguments: str) -> int:
    """Its exit code, also where argparse exits by itself."""
    try:
        return main(arguments)
    except SystemExit as exited:
        return int(exited.code or 0)
