"""What is said of a command line that is wrong: one line, with the value it is about and what to do."""

import gzip
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE
from overlap_sched.problem.file import problem_bytes
from tests.cli.test_pipeline import JOB
from tests.support.examples import Command

OWN = "it has its own groups, sizes and times. Leave --group, --size, --graph, --import, --device and --fusion out."
PIPELINES = "gpipe, 1f1b, zb-h1, zbv, dualpipe, dualpipev, and interleaved:V"
VALUES = "values are numbers above 0, each once"
HUGE = "9" * 400
SAID = [
    ("", "the following arguments are required: COMMAND"),
    ("pln x.json", "argument COMMAND: invalid choice: 'pln' (choose from plan, fit, "),
    ("pln x.json", "Did you mean plan?"),
    ("diff a.json b.json", "diff is no command any more: compare the figures of two `overlap-sched plan --json`"),
    ("plan x.json --fail-if=step>1%", "--fail-if is no option any more: "),
    ("plan x.json --allocator-cost 2", "--allocator-cost is no option any more: "),
    ("plan x.json --base diff", "--base: invalid choice: 'diff' (choose from original, memory, memory-peak)."),
    ("plan", "the following arguments are required: PROBLEM_OR_DUMP"),
    ("plan x.json --headrom 5GiB", "unrecognized arguments: --headrom 5GiB. Did you mean --headroom?"),
    ("plan x.json --zzz", "unrecognized arguments: --zzz."),
    ("plan x.json --schedule 1f1b", "unrecognized arguments: --schedule 1f1b."),
    ("plan x.json y.json", "unrecognized arguments: y.json."),
    ("plan x.json --headroom", "argument --headroom: expected one argument"),
    ("plan x.json --headroom 5", "--headroom is '5', a number without a unit. Did you mean 5GiB? For bytes write 5B."),
    ("plan x.json --headroom much", "--headroom is 'much'; write bytes (0), a size with a unit (500MB, 1GiB) or perc"),
    (f"plan x.json --headroom {HUGE}", f"--headroom is {HUGE[:37]}...: more than 2**60 bytes"),
    ("plan x.json --budget pek", "--budget: invalid choice: 'pek' (choose from peak, profile). Did you mean peak?"),
    ("plan x.json --effort 4.5", "argument --effort: invalid int value: '4.5'"),
    ("plan x.json --effort -1", "--effort is -1; it is a whole number of runs, 0 to 64."),
    ("plan x.json --comm-scale fast", "argument --comm-scale: invalid float value: 'fast'"),
    ("plan x.json --comm-scale nan", "--comm-scale is nan; it is a factor, 0 or more."),
    ("plan x.json --comm-scale -1", "--comm-scale is -1.0; it is a factor, 0 or more."),
    ("plan x.json --max-nodes 0", "argument --max-nodes: '0' is not a whole number of 1 or more"),
    ("plan x.json --max-input-bytes=5%", "--max-input-bytes: '5%' is not a size: write 500MB or 2GiB"),
    ("plan x.json --group fsdp", "argument --group: 'fsdp' is not NAME=SIZE or NAME=RANK,RANK,..."),
    (f"plan x.json --group 0={HUGE}", "--group: '0=99999999999999999999999999999999999...' is not NAME=SIZE"),
    (f"plan x.json --size u0={HUGE}", "--size: 'u0=9999999999999999999999999999999999...' is not NAME=N"),
    ("plan x.json --he 5GiB", "ambiguous option: --he could match --help, --headroom"),
    ("plan x.json --rewrites buckt", "--rewrites has 'buckt'; known are bucket, coalesce_gathers, keep, regather, str"),
    ("plan x.json --rewrites buckt", "Did you mean bucket?"),
    ("plan x.json --base memory --budget profile", "Use --budget peak, or --base original."),
    ("plan x.json --memory-limit 40", "--memory-limit is '40', a number without a unit. Did you mean 40GiB?"),
    ("plan x.json --merge r.json", "--merge puts a real step into what --trace writes: give --trace OUT.json, too."),
    ("plan {dir}/none.json", "{dir}/none.json: cannot be read (No such file or directory). Check the path."),
    ("plan {dir}/none.py", "{dir}/none.py: cannot be read (No such file or directory). Check the path."),
    ("plan {dir}", "{dir}: cannot be read (Is a directory). Check the path."),
    ("plan {dir}/cut.json.gz", "{dir}/cut.json.gz: the gzip stream is cut short. Copy or download the file again."),
    ("plan {dir}/notes.md", "{dir}/notes.md: is neither a problem file (JSON, plain or gzipped) nor named like a"),
    ("plan {dir}/huge.json", "{dir}/huge.json: nodes[4].us: number out of range."),
    ("plan {file} --fusion inductor", "{file} is a problem file: " + OWN),
    ("plan {file} --group fsdp=64", "{file} is a problem file: " + OWN),
    ("plan {file} --cluster gloo", "it has its own times. Leave --cluster"),
    ("plan {file} --mesh tp=8", "it has its own times. Leave --cluster"),
    ("plan {file} --no-contention", "it has its own times. Leave --cluster"),
    ("plan {file} --memory-model tracker", "problem 'example' is in the 'runtime' memory model, but 'tracker' was"),
    ("plan {file} --out {dir}/no/order.json", "{dir}/no/order.json: cannot be written (there is no folder {dir}/no)."),
    ("plan {file} --plot {dir}/out.docx", "{dir}/out.docx: its ending does not name a picture format. End it in .png"),
    ("explain {file} gathr", "problem 'example' has no collective named 'gathr'. Did you mean 'gather'?"),
    ("explain x.json --costs --top -1", "--top is -1; it is a number of nodes, 0 or more."),
    (
        "explain x.json gather --costs",
        "--costs lists nodes by their times, and one collective is named. Leave out one.",
    ),
    ("explain x.json --top -1", "--top is -1; it is a number of collectives, 0 or more."),
    ("explain x.json gather --all", "--top and --all list several collectives, but one is named. Leave out one."),
    ("explain x.json --peak --json", "--peak explains memory, not collectives. Leave out COLLECTIVE, --top, --all and"),
    ("memory x.json --effort 31", "--effort is 31; each unit doubles the work: 30 at most."),
    ("memory {file} --effort -1", "effort is -1; it is a whole number, 0 or more."),
    ("memory x.json --align 2199023255552", "--align is 2199023255552; it is a number of bytes, 1 to 2**40."),
    ("memory x.json --time-limit inf", "--time-limit is inf; it is a finite number of seconds above 0."),
    ("memory {file} --exact --time-limit 0", "time_limit_s is 0.0; it is a number of seconds above 0."),
    ("memory x.json --limit 1GiB", "--limit asks for a proof or an order: give --exact, too."),
    ("memory x.json --exact --limit much", "--limit is 'much'; write a size with a unit (80GB, 24GiB) or percent"),
    ("memory {file} --exact --limit 10B", "no order of 'example' fits into 10 bytes: whatever the order, 18874368 byt"),
    ("fit x.json", "one of the arguments --memory-limit --max-slowdown is required"),
    ("fit x.json --memory-limit 1GiB --max-slowdown 5%", "--max-slowdown: not allowed with argument --memory-limit"),
    ("fit x.json --memory-limit 800%", "--memory-limit is '800%', far above what is needed. Did you mean 80%?"),
    ("fit x.json --memory-limit 40", "--memory-limit is '40', a number without a unit. Did you mean 40GiB?"),
    ("fit x.json --memory-limit lots", "--memory-limit is 'lots'; write a size with a unit (80GB, 24GiB) or percent"),
    ("fit x.json --max-slowdown 500%", "--max-slowdown is '500%'; write percent of the best order's step: 5%."),
    ("fit x.json --max-slowdown 0.05", "--max-slowdown is '0.05'; write percent of the best order's step: 5%."),
    ("fit x.json --max-slowdown=-5%", "--max-slowdown is '-5%'; write percent of the best order's step: 5%."),
    ("fit x.json --memory-limit 5GiB --host-memory 40", "--host-memory is '40', a number without a unit. Did you mea"),
    ("fit x.json --memory-limit 5GiB --host-memory 50%", "--host-memory is '50%'; write a size with a unit: 64GiB."),
    (
        "fit x.json --memory-limit 5GiB --kinds melt",
        "--kinds has 'melt'; known are recompute, offload, fission, batch.",
    ),
    ("fit x.json --memory-limit 5GiB --effort 7", "--effort is 7; it is 0, 1 or 2."),
    ("fit {file} --memory-limit 1MiB", "'example' does not fit into 1.0 MiB: the lowest peak found is "),
    ("pipeline x.toml --schedule 1f1b", "give --csv, too. Did you mean --schedules 1f1b, which compares?"),
    ("pipeline x.toml --csv x.csv", "--csv writes one schedule: give both --csv OUT.csv and --schedule NAME."),
    ("pipeline x.toml --csv a.csv --schedule found", "--schedule found is what --find finds: give --find, too."),
    ("pipeline x.toml --schedules 1f1b,2f2b", f"'2f2b' is no schedule. Give some of {PIPELINES}"),
    ("pipeline x.toml --schedules 1F1B", "Did you mean 1f1b?"),
    ("pipeline {job} --csv {dir}/no/x.csv --schedule 1f1b", "{dir}/no/x.csv: cannot be written"),
    ("pipeline {job} --csv {job} --schedule 1f1b", "--csv {job}: would overwrite the input, {job}."),
    ("pipeline {job} --order-graphs", "--order-graphs: {job} names no graph. Give its blocks a problem, or leave it"),
    ("pipeline x.toml --order-graphs 5", "headroom is '5', a number without a unit. Did you mean 5GiB?"),
    ("pipeline x.toml --find 0", "--find 0: an effort is 1 or more."),
    ("pipeline x.toml --vary stages=4", "--vary stages=4: is not WHAT=VALUES, WHAT one of micro_batches, ranks, links"),
    ("pipeline x.toml --vary ranks=0.5", "--vary ranks=0.5: ranks are whole numbers."),
    ("pipeline x.toml --vary links=2,x", f"--vary links=2,x: {VALUES}"),
    ("pipeline x.toml --vary links=2,2", f"--vary links=2,2: {VALUES}"),
    ("pipeline x.toml --vary links=2 --vary links=3", "--vary links=3: links is varied already. Give it once."),
    (f"pipeline x.toml --vary ranks={','.join(map(str, range(1, 66)))}", "that makes 65 combinations, 64 at most."),
]


@pytest.mark.parametrize(("line", "said"), SAID, ids=[line[:60] for line, _ in SAID])
def test_one_line(line: str, said: str, problem: str, tmp_path: Path, cli: Command) -> None:
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"format": "overlap-problem/1"' * 20)[:-12])
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "huge.json").write_text(problem_bytes(EXAMPLE).decode().replace('"us":50.0', f'"us":{HUGE}'))
    places = {"dir": str(tmp_path), "file": problem, "job": str(tmp_path / "job.toml")}
    assert said.format(**places) in cli.refused(*line.format(**places).split())
