"""``overlap-sched diff``: orders, plans and records; exit codes, JSON, narrow terminals, and every error word by "
"word."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.cli.schemas import schema_text
from overlap_sched.problem import Kind, Node, Problem
from tests.cli.test_narrow import assert_whole
from tests.support.command import Command, run

pytestmark = pytest.mark.usefixtures("plain_terminal")
Write = Callable[[str, object], str]
RECORD = {"date": "2026-11-22", "command": "scripts/bench.py", "commit": "abc1234"}
PLANNED = {
    "schema": "overlap-sched/plan/1",
    "name": "layer",
    "nodes": 10,
    "original_step_us": 190.0,
    "step_us": 150.0,
    "exposed_us": 40.0,
    "gap_percent": 25.0,
    "original_peak_bytes": 22020096,
    "peak_bytes": 22020096,
    "headroom_bytes": 0,
    "memory_model": "runtime",
    "contention": None,
    "prices": {"from": "problem file"},
    "fell_back": False,
    "reserved_bytes": 23068672,
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, data: object) -> str:
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return written


@pytest.fixture
def orders(write: Write) -> tuple[str, str]:
    """The original one of the example, and one of 120 us."""
    names = [node.name for node in EXAMPLE.nodes]
    filled = ["w", "x", "gather", "mm", "full", "wgrad", "scatter", "dgrad", "grad", "output"]
    return write("a.json", names), write("b.json", filled)


def row(graph: str, step_us: float, **more: object) -> dict[str, object]:
    return {"graph": graph, "network": "x1", "memory_model": "runtime", "by": "ours", "step_us": step_us, **more}


def as_json(cli: Command, *arguments: str, code: int = 0) -> Any:
    """What ``--json`` prints, held against the schema."""
    jsonschema = pytest.importorskip("jsonschema")
    found = cli.json("diff", *arguments, code=code)
    jsonschema.Draft202012Validator(json.loads(schema_text("diff"))).validate(found)
    return found


def test_two_orders(problem: str, orders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", *orders, "--problem", problem) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.rstrip() for line in out.splitlines()][:8] == [
        "example: 10 nodes",
        "                    A       B     change",
        "────────────────────────────────────────",
        "step, us        190.0   120.0    -36.8 %",
        "exposed, us      80.0    10.0    -87.5 %",
        "gap, %          58.33    0.00   -58.3 pt",
        "peak, MiB        21.0    26.0    +23.8 %",
        "reserved, MiB    22.0    42.0    +90.9 %",
    ]
    text = " ".join(out.split())
    assert "Simulated, in the runtime memory model." in text
    assert "launched at the start of the graph, and waited for too soon 40.0 0.0 -40.0" in text
    assert "at the end of the step: no compute is left to run meanwhile 40.0 10.0 -30.0" in text
    moved = "Moved: 2 of 10 nodes (the rest is in the same sequence): 0 launches (0 earlier, 0 later), 1 wait."
    assert moved in text
    assert "Exposed less: 2 collectives (-70.0 us); more: none." in text
    assert out.endswith(
        "\nLargest changes first:\n"
        "\ngather on group fsdp, 40.0 us\n  exposed 40.0 → 0.0 us (-40.0 us)\n  launch at 2 as in A, 0.0 → 0.0 us\n"
        "  wait at 3 → 4 (1 later), 0.0 → 50.0 us\n  A: launched at the start of the graph, and waited for too soon\n"
        "  B: nothing: hidden\n\nscatter on group fsdp, 40.0 us\n"
        "  exposed 40.0 → 10.0 us (-30.0 us)\n  launch at 7 → 6 (1 earlier), 150.0 → 80.0 us\n"
        "  wait at 8 as in A, 150.0 → 110.0 us\n  both: at the end of the step: no compute is left to run meanwhile\n"
    )


def test_so_many(problem: str, orders: tuple[str, str], cli: Command) -> None:
    out = cli.out("diff", *orders, "--problem", problem, "--top", "1")
    assert "The 1 largest change of 2 (--all shows every one):" in out
    assert "gather on" in out
    assert "scatter on" not in out
    assert "gather on" not in cli.out("diff", *orders, "--problem", problem, "--top", "0")
    for rest, number in ((["--top", "1"], 1), ([], 2), (["--all"], 2), (["--top", "0"], 0)):
        found = as_json(cli, *orders, "--problem", problem, *rest)
        assert (found["collectives_changed"], len(found["collectives"])) == (2, number)


def test_ten_are_shown_unless_all_are_asked_for(write: Write, tmp_path: Path, cli: Command) -> None:
    nodes: list[Node] = []
    for k in range(12):
        nodes.append(Node(f"gather{k}", Kind.COLLECTIVE, (), (), (), 10.0, "all_gather", "fsdp"))
        nodes.append(Node(f"full{k}", Kind.WAIT, (3 * k,), collective=3 * k))
        nodes.append(Node(f"mm{k}", Kind.COMPUTE, (3 * k + 1,), time_us=10.0))
    path = tmp_path / "twelve.json"
    write_problem(Problem("twelve", tuple(nodes), (), EXAMPLE.groups), path)
    names = [node.name for node in nodes]
    early = write("b.json", sorted(names, key=lambda name: not name.startswith("gather")))
    out = cli.out("diff", "original", early, "--problem", str(path))
    assert "The 10 largest changes of 11 (--all shows every one):" in out
    assert "11 launches (11 earlier, 0 later), 0 waits." in out
    assert out.count("  launch at ") == 10
    assert cli.out("diff", "original", early, "--problem", str(path), "--all").count("  launch at ") == 11


def test_the_largest_change_of_a_cause_is_first(problem: str, orders: tuple[str, str], cli: Command) -> None:
    for pair in (orders, orders[::-1]):
        out = cli.out("diff", *pair, "--problem", problem)
        assert out.index("launched at the start of the graph") < out.index("at the end of the step")  # 40 us, then 30


def test_a_replay_that_only_one_plan_has(write: Write, cli: Command) -> None:
    pair = write("a.json", PLANNED), write("b.json", {**PLANNED, "reserved_bytes": None})
    for before, after in (pair, pair[::-1]):
        found = as_json(cli, before, after)
        assert [figure["of"] for figure in found["figures"] if figure["name"] == "reserved"] == []


def test_the_original_order_has_a_name(problem: str, orders: tuple[str, str], cli: Command) -> None:
    found = as_json(cli, "original", orders[1], "--problem", problem)
    figures = [(figure["name"], figure["before"], figure["after"]) for figure in found["figures"][:2]]
    assert figures == [("step", 190.0, 120.0), ("exposed", 80.0, 10.0)]
    assert found["causes"] == [
        {"name": "start", "before_us": 40.0, "after_us": 0.0},
        {"name": "tail", "before_us": 40.0, "after_us": 10.0},
    ]
    assert found["moved"] == 2
    gather = found["collectives"][0]
    assert (gather["name"], gather["exposed_change_us"], gather["launch_moved"], gather["wait_moved"]) == (
        "gather", -40.0, False, True,
    )  # fmt: skip
    assert gather["after"] == {
        "position": 2, "launch_us": 0.0, "wait_position": 4, "wait_us": 50.0, "exposed_us": 0.0, "cause": "nothing",
    }  # fmt: skip
    assert "The two orders are the same." in cli.out("diff", orders[0], "original", "--problem", problem)


def test_options_of_the_input_count(problem: str, orders: tuple[str, str], cli: Command) -> None:
    found = as_json(cli, *orders, "--problem", problem, "--comm-scale", "2")
    assert found["figures"][0]["before"] == 110 + 2 * 80


@pytest.mark.slow
def test_a_dump(dump: str, tmp_path: Path, cli: Command) -> None:
    order = str(tmp_path / "order.json")
    assert run("plan", dump, "--out", order) == 0
    found = as_json(cli, "original", order, "--problem", dump)
    assert found["figures"][0]["change"] <= 0


def test_a_collective_that_nothing_waits_for(write: Write, tmp_path: Path, cli: Command) -> None:
    nodes = (
        Node("mm", Kind.COMPUTE, time_us=5.0),
        Node("reduce", Kind.COLLECTIVE, (), (), (), 10.0, "all_reduce", "fsdp"),
    )
    path = tmp_path / "alone.json"
    write_problem(Problem("alone", nodes, (), EXAMPLE.groups), path)
    out = cli.out("diff", "original", write("b.json", ["reduce", "mm"]), "--problem", str(path))
    assert "  launch at 1 → 0 (1 earlier), 5.0 → 0.0 us\n  wait at nothing in this graph\n" in out + "\n"
    assert "1 launch (1 earlier, 0 later), 0 waits." in out


@pytest.mark.parametrize("columns", ["40", "200"])
def test_terminals(
    columns: str,
    problem: str,
    orders: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    cli: Command,
) -> None:
    """Labels are whole words, figures are whole, nothing is wider than the terminal, and no colour in a pipe."""
    monkeypatch.setenv("COLUMNS", columns)
    out = cli.out("diff", *orders, "--problem", problem)
    lines = out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert "\x1b" not in out
    assert "…" not in out
    words = set(out.replace(",", " ").split())
    assert {"step", "exposed", "reserved", "190.0", "120.0", "-36.8", "-58.3"} <= words
    if columns == "40":
        assert_whole(out, ("exposed, us", "reserved, MiB", "no compute is left to run meanwhile"))


def test_two_plans(write: Write, problem: str, cli: Command) -> None:
    plans = []
    for headroom in ("0", "5MiB"):
        plans.append(write(f"{headroom}.json", cli.out("plan", problem, "--headroom", headroom, "--json")))
    text = cli.words("diff", *plans)
    assert "example: 10 nodes" in text
    assert "step, us 150.0 120.0 -20.0 %" in text
    assert "original step, us 190.0 190.0 +0.0 %" in text
    assert "peak, MiB 21.0 26.0 +23.8 %" in text
    assert text.endswith("headroom_bytes: 0 in A, 5242880 in B")
    found = as_json(cli, *plans)
    assert (found["of"], found["name"], found["nodes"]) == ("plans", "example", 10)
    assert [figure["name"] for figure in found["figures"]] == [
        "step", "exposed", "peak", "reserved", "gap", "original step", "original peak",
    ]  # fmt: skip


def test_plans_of_two_graphs_where_asked_for(write: Write, cli: Command) -> None:
    one = write("a.json", PLANNED)
    other = write("b.json", {**PLANNED, "nodes": 1200, "step_us": 180.0, "fell_back": True, "prices": {"from": "dump"}})
    out = cli.out("diff", one, other, "--any-graph")
    assert "layer: 10 → 1,200 nodes" in out
    assert out.endswith(
        "\nprices: {'from': 'problem file'} in A, {'from': 'dump'} in B\n"
        "B keeps the original order: the one found failed verification\n"
    )


def test_two_records(write: Write, cli: Command) -> None:
    before = [
        row("moe", 100.0, peak_bytes=2048),
        row("llama", 100.0),
        row("gone", 1.0),
        row("same", 7.0, gap_percent=None),
    ]
    after = [row("llama", 90.0), row("moe", 103.0, peak_bytes=1024), row("same", 7.0), row("new", 2.0, exposed_us=1.0)]
    one = write("a.json", {**RECORD, "rows": before})
    other = write("b.json", {"rows": after})
    out = cli.out("diff", one, other)
    text = " ".join(out.split())
    assert "a.json (2026-11-22, scripts/bench.py, abc1234)" in text
    assert "b.json (no date)" in text
    assert "3 rows in both. Figures are as recorded: simulated or measured, as those commands say." in text
    assert "step 1 1 1 -10.0 %" in text
    assert "peak 1 0 0 -50.0 %" in text
    assert out.endswith(
        "Largest changes first:\n\n"
        "moe, x1, runtime, ours\n  peak 2.0 → 1.0 KiB, -50.0 % (-1.0 KiB)\n  step 100.0 → 103.0 us, +3.0 % (+3.0 us)\n"
        "\nllama, x1, runtime, ours\n  step 100.0 → 90.0 us, -10.0 % (-10.0 us)\n"
        "\nOnly in A: gone, x1, runtime, ours\n\nOnly in B: new, x1, runtime, ours\n"
    )
    assert "The 1 row with the largest changes of 2 (--all shows every one):" in cli.out(
        "diff", one, other, "--top", "1"
    )
    assert "No row changed." in cli.out("diff", one, one)
    found = as_json(cli, one, other, "--fail-if", "step > +2%", code=3)
    assert found["notes"] == ["Only in A: gone, x1, runtime, ours", "Only in B: new, x1, runtime, ours"]
    assert [figure["of"] for figure in found["failed"][0]["figures"]] == ["moe, x1, runtime, ours"]


def test_the_committed_records(cli: Command) -> None:
    """Of the kinds that are kept."""
    for path in sorted((Path(__file__).parents[2] / "docs" / "records").glob("*.json")):
        found = as_json(cli, str(path), str(path), "--fail-if", "step > +0%")
        assert found["figures"]
        assert all(figure["change"] == 0 for figure in found["figures"])


def test_a_condition_that_holds_is_exit_code_3(
    problem: str, orders: tuple[str, str], cli: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    conditions = ["--fail-if", "step > +1%", "--fail-if", "peak > +1MiB", "--fail-if", "reserved > +50%"]
    assert run("diff", *orders, "--problem", problem, *conditions) == 3
    out, err = capsys.readouterr()
    assert "step, us" in out
    assert err.splitlines() == [
        "overlap-sched: failed: --fail-if 'peak > +1MiB': peak: 21.0 → 26.0 MiB, +23.8 % (+5.0 MiB), from A to B",
        "overlap-sched: failed: --fail-if 'reserved > +50%': reserved: 22.0 → 42.0 MiB, "
        "+90.9 % (+20.0 MiB), from A to B",
    ]
    assert run("diff", *orders, "--problem", problem, *conditions[:2]) == 0
    assert capsys.readouterr().err == ""
    found = as_json(cli, *orders, "--problem", problem, *conditions, code=3)
    assert [failed["condition"] for failed in found["failed"]] == ["peak > +1MiB", "reserved > +50%"]
    assert found["failed"][0]["figures"][0]["change"] == 5 * 2**20


ORDER = json.dumps(["w"])
PLAN = json.dumps(PLANNED)
ROWS = json.dumps({"rows": [row("llama", 1.0)]})
_AN_ORDER, _A_PLAN = "an order (overlap-sched plan --out)", "a plan (overlap-sched plan --json)"
_A_RECORD = "a record of runs (scripts/bench.py --record)"
GIVE = f"Give {_AN_ORDER}, {_A_PLAN}, or {_A_RECORD}."


@pytest.mark.parametrize(
    ("one", "other", "options", "message"),
    [
        (ORDER, PLAN, "", f"A is {_AN_ORDER}, and B is {_A_PLAN}. Two of one kind can be compared."),
        (ROWS, ORDER, "", f"A is {_A_RECORD}, and B is {_AN_ORDER}. Two of one kind can be compared."),
        (
            ORDER, ORDER, "",
            "A and B are orders; what they cost depends on the graph. Name it: --problem PROBLEM_OR_DUMP.",
        ),
        (
            PLAN, PLAN, "--problem p.json",
            "--problem p.json: A is a plan, which has its figures already. Leave --problem out.",
        ),
        (ROWS, ROWS, "--any-graph", "--any-graph is for plans, and A is a record. Leave it out."),
        (PLAN, PLAN, "--top -1", "--top is -1; it is a number of collectives or rows, 0 or more."),
        ("", PLAN, "", "A: is not JSON at line 1, column 1 (Expecting value). Was it cut short?"),
        (PLAN, "[1]", "", "B: is a list, but not of names. An order is a JSON list of node names."),
        ("3", PLAN, "", f"A: is neither a JSON list nor an object. {GIVE}"),
        ("{}", PLAN, "", f"A: has neither a schema nor rows. {GIVE}"),
        (
            '{"format": "overlap-problem/1"}', PLAN, "",
            "A: is in the format overlap-problem/1. Of a problem, give the orders, and the problem by --problem.",
        ),
        (
            '{"schema": "overlap-sched/memory/1"}', PLAN, "",
            f"A: is in the format overlap-sched/memory/1, which is not compared. {GIVE}",
        ),
        (
            PLAN, '{"schema": "overlap-sched/plan/2"}', "",
            "B: is in the format overlap-sched/plan/2; this version reads overlap-sched/plan/1. Make it again with "
            "this version.",
        ),
        (
            PLAN, PLAN.replace('"nodes": 10', '"nodes": 11'), "",
            "A is a plan of layer (10 nodes), and B of layer (11 nodes): two graphs. Plan the same graph, or say "
            "that the figures are to be compared all the same: --any-graph.",
        ),
        (
            PLAN, PLAN.replace('"layer"', '"other"'), "",
            "A is a plan of layer (10 nodes), and B of other (10 nodes): two graphs. Plan the same graph, or say "
            "that the figures are to be compared all the same: --any-graph.",
        ),
        (
            PLAN.replace('"layer"', "7"), PLAN, "",
            "A: does not say of which graph it is. Make it again: overlap-sched plan --json.",
        ),
        (
            PLAN, PLAN.replace('"nodes": 10', '"nodes": "ten"'), "",
            "B: does not say of which graph it is. Make it again: overlap-sched plan --json.",
        ),
        (PLAN.replace("150.0", "true"), PLAN, "", "A: step_us is True, which is no number. Make the file again."),
        (
            PLAN, PLAN.replace('"runtime"', '"tracker"'), "--any-graph",
            "A counts memory in the runtime model, B in the tracker model. Plan both with the same --memory-model.",
        ),
        (
            PLAN, PLAN.replace('"step_us"', '"steps"'), "",
            "B: has no step_us. Make the plan again: overlap-sched plan --json.",
        ),
        (PLAN.replace("150.0", '"150"'), PLAN, "", "A: step_us is '150', which is no number. Make the file again."),
        (PLAN.replace("150.0", "NaN"), PLAN, "", "A: step_us is nan, which is no number. Make the file again."),
        (
            PLAN, PLAN.replace("150.0", "1" + 400 * "0"), "",
            f"B: step_us is 1{56 * '0'}..., which is no number. Make the file again.",
        ),
        (
            PLAN, PLAN.replace("23068672", '"22 MiB"'), "",
            "B: reserved_bytes is '22 MiB', which is no number. Make the file again.",
        ),
        (
            ROWS, '{"rows": [3]}', "",
            "B: row 0 is no object. Give a record that scripts/bench.py --record or the like wrote.",
        ),
        (
            json.dumps({"rows": [row("llama", 1.0), row("llama", 2.0)]}), ROWS, "",
            "A: 1 row has the same names as another (graph, model, problem, case, batch, update, window, network, "
            "memory_model, solver, order, by, way). Give each names of its own.",
        ),
        (
            ROWS, ROWS.replace("llama", "moe"), "",
            "A and B: no row is in both with a figure to compare (A has 'llama, x1, runtime, ours', B has 'moe, x1, "
            "runtime, ours'). Compare records of the same graphs.",
        ),
        (
            '{"rows": []}', '{"rows": []}', "",
            "A and B: no row is in both with a figure to compare (no rows). Compare records of the same graphs.",
        ),
        (
            ROWS, ROWS, "--fail-if peak>+1%",
            "--fail-if 'peak>+1%': A and B do not both have peak, so this can never fail. Both have step: write a "
            "condition on those, or leave it out.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(one: str, other: str, options: str, message: str, write: Write, cli: Command) -> None:
    names = write("a", one), write("b", other)
    with patch("overlap_sched.cli.command.load", side_effect=AssertionError("the problem was read")):
        found = cli.refused("diff", *names, *options.split())
    assert found.replace(names[0], "A").replace(names[1], "B") == message


def test_orders_that_are_not_of_the_problem(problem: str, orders: tuple[str, str], write: Write, cli: Command) -> None:
    other, torn = write("other.json", ["w", "mm.2"]), write("torn.json", ["w"])
    assert cli.refused("diff", orders[0], other, "--problem", problem) == (
        f"{other}: 'mm.2' is not a node of problem 'example'. Was the order made for another graph?"
    )
    assert cli.refused("diff", torn, orders[0], "--problem", problem) == (
        f"{torn}: the order cannot run on problem 'example': x never runs. Make it again."
    )
    missing = str(Path(problem).with_name("missing.json"))
    assert cli.refused("diff", missing, orders[0], "--problem", problem) == (
        f"{missing}: cannot be read (No such file or directory). Check the path."
    )
    assert cli.refused("diff", *orders, "--problem", missing).startswith(f"{missing}: cannot be read")
    assert cli.refused("diff", *orders, "--problem", problem, "--max-input-bytes", "10").startswith(
        f"{orders[0]}: has more than 10 bytes"
    )
    assert cli.refused("diff", *orders, "--problem", problem, "--fail-if", "step > 1").startswith(
        "--fail-if 'step > 1'"
    )
