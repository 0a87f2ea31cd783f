"""What is said of a command line that is wrong: one line, before anything is read."""

import pytest

from tests.support.examples import Command

COMMANDS = "plan, fit, sweep, explain, report, memory, calibrate, pipeline, schema, demo"

JQ = "compare the figures of two `overlap-sched plan --json` with jq, which can also fail a build"
OF_CSV = "--schedule is the one that --csv OUT.csv writes: give --csv, too."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("pln x.json", f"argument COMMAND: invalid choice: 'pln' (choose from {COMMANDS}). Did you mean plan?"),
        ("diff a.json b.json", f"diff is no command any more: {JQ}."),
        ("plan x.json --fail-if=step>1%", f"--fail-if is no option any more: {JQ}."),
        (
            "plan x.json --base diff",
            "argument --base: invalid choice: 'diff' (choose from original, memory, memory-peak).",
        ),
        ("plan", "the following arguments are required: PROBLEM_OR_DUMP"),
        ("plan x.json --headrom 5GiB", "unrecognized arguments: --headrom 5GiB. Did you mean --headroom?"),
        ("plan x.json --zzz", "unrecognized arguments: --zzz."),
        ("plan x.json --schedule 1f1b", "unrecognized arguments: --schedule 1f1b."),
        ("plan x.json y.json", "unrecognized arguments: y.json."),
        ("plan x.json --headroom", "argument --headroom: expected one argument"),
        (
            "plan x.json --headroom 5",
            "--headroom is '5', a number without a unit. Did you mean 5GiB? For bytes write 5B.",
        ),
        (
            "plan x.json --headroom much",
            "--headroom is 'much'; write bytes (0), a size with a unit (500MB, 1GiB) or percent of the original peak "
            "(5%).",
        ),
        (
            "plan x.json --budget pek",
            "argument --budget: invalid choice: 'pek' (choose from peak, profile). Did you mean peak?",
        ),
        (
            "plan x.json --base low",
            "argument --base: invalid choice: 'low' (choose from original, memory, memory-peak).",
        ),
        ("plan x.json --effort 4.5", "argument --effort: invalid int value: '4.5'"),
        ("plan x.json --effort -1", "--effort is -1; it is a whole number of runs, 0 to 64."),
        ("plan x.json --comm-scale fast", "argument --comm-scale: invalid float value: 'fast'"),
        ("plan x.json --max-nodes 0", "argument --max-nodes: '0' is not a whole number of 1 or more"),
        ("plan x.json --group fsdp", "argument --group: 'fsdp' is not NAME=SIZE or NAME=RANK,RANK,..."),
        ("plan x.json --he 5GiB", "ambiguous option: --he could match --help, --headroom"),
        (
            "plan x.json --rewrites buckt",
            "--rewrites has 'buckt'; known are bucket, coalesce_gathers, keep, regather, stream. Did you mean bucket?",
        ),
        (
            "plan x.json --rewrites merge",
            "--rewrites has 'merge'; known are bucket, coalesce_gathers, keep, regather, stream.",
        ),
        (
            "plan x.json --base memory --budget profile",
            "--base is 'memory' and --budget is 'profile': an order with a lower peak is not lower at every position. "
            "Use --budget peak, or --base original.",
        ),
        ("fit x.json", "one of the arguments --memory-limit --max-slowdown is required"),
        (
            "fit x.json --memory-limit 1GiB --max-slowdown 5%",
            "argument --max-slowdown: not allowed with argument --memory-limit",
        ),
        ("fit x.json --memory-limit 800%", "--memory-limit is '800%', far above what is needed. Did you mean 80%?"),
        ("fit x.json --max-slowdown 500%", "--max-slowdown is '500%'; write percent of the best order's step: 5%."),
        ("pipeline x.toml --schedule 1f1b", f"{OF_CSV} Did you mean --schedules 1f1b, which compares?"),
    ],
)
def test_one_line(line: str, said: str, cli: Command) -> None:
    assert cli.refused(*line.split()) == said


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("fit {} --memory-limit 40", "--memory-limit"),
        ("fit {} --memory-limit 5GiB --host-memory 40", "--host-memory"),
        ("plan {} --memory-limit 40", "--memory-limit"),
    ],
)
def test_numbers_without_a_unit(line: str, option: str, problem: str, cli: Command) -> None:
    assert cli.refused(*line.format(problem).split()) == (
        f"{option} is '40', a number without a unit. Did you mean 40GiB? For bytes write 40B."
    )
