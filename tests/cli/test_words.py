"""What is said of a command line that is wrong: one line, in its own words, before anything is read."""

import pytest

from tests.support.command import Command

COMMANDS = "plan, frontier, fit, robust, whatif, explain, report, memory, diff, calibrate, pipeline, schema, demo"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "`overlap-sched` lacks COMMAND. `overlap-sched --help` says what that is."),
        ("pln x.json", f"'pln' is no command. Did you mean plan? Commands are {COMMANDS}."),
        ("plan", "`overlap-sched plan` lacks PROBLEM_OR_DUMP. `overlap-sched plan --help` says what that is."),
        (
            "plan x.json --headrom 5GiB",
            "--headrom is no option of `overlap-sched plan`. Did you mean --headroom? `overlap-sched plan --help` "
            "lists its options.",
        ),
        (
            "plan x.json --zzz",
            "--zzz is no option of `overlap-sched plan`. `overlap-sched plan --help` lists its options.",
        ),
        ("plan x.json y.json", "'y.json' is one argument too many for `overlap-sched plan`."),
        ("plan x.json --headroom", "--headroom stands without its value. Write --headroom SIZE."),
        (
            "plan x.json --headroom 5",
            "--headroom is '5', a number without a unit. Did you mean 5GiB? For bytes write 5B.",
        ),
        (
            "plan x.json --headroom much",
            "--headroom is 'much'; write bytes (0), a size with a unit (500MB, 1GiB) or percent of the original peak "
            "(5%).",
        ),
        ("plan x.json --budget pek", "--budget is 'pek'; it is one of peak, profile. Did you mean peak?"),
        ("plan x.json --base low", "--base is 'low'; it is one of original, memory, memory-peak."),
        ("plan x.json --effort 4.5", "--effort is '4.5'; it is a whole number."),
        ("plan x.json --effort -1", "--effort is -1; it is a whole number of runs, 0 to 1000000."),
        ("plan x.json --comm-scale fast", "--comm-scale is 'fast'; it is a number."),
        ("plan x.json --max-nodes 0", "--max-nodes: '0' is not a whole number of 1 or more."),
        ("plan x.json --group fsdp", "--group: 'fsdp' is not NAME=SIZE or NAME=RANK,RANK,..."),
        ("plan x.json --he 5GiB", "--he may be --help or --headroom. Write one of them."),
        (
            "plan x.json --rewrites buckt",
            "--rewrites has 'buckt'; known are bucket, coalesce_gathers, in_place, keep, regather, split, stream. "
            "Did you mean bucket?",
        ),
        (
            "plan x.json --rewrites merge",
            "--rewrites has 'merge'; known are bucket, coalesce_gathers, in_place, keep, regather, split, stream.",
        ),
        (
            "plan x.json --base memory --budget profile",
            "--base is 'memory' and --budget is 'profile': an order with a lower peak is not lower at every position. "
            "Use --budget peak, or --base original.",
        ),
        ("fit x.json", "`overlap-sched fit` lacks one of --memory-limit and --max-slowdown."),
        (
            "fit x.json --memory-limit 1GiB --max-slowdown 5%",
            "--max-slowdown and --memory-limit exclude each other. Leave one out.",
        ),
    ],
)
def test_one_line(line: str, said: str, cli: Command) -> None:
    assert cli.refused(*line.split()) == said


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("fit {} --memory-limit 40", "--memory-limit"),
        ("fit {} --memory-limit 5GiB --host-memory 40", "--host-memory"),
        ("frontier {} --memory-limit 40", "--memory-limit"),
    ],
)
def test_numbers_without_a_unit(line: str, option: str, problem: str, cli: Command) -> None:
    assert cli.refused(*line.format(problem).split()) == (
        f"{option} is '40', a number without a unit. Did you mean 40GiB? For bytes write 40B."
    )
