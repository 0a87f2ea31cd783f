"""The package as a user meets it."""

import ast
import doctest
import graphlib
import importlib
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import overlap_sched
import overlap_sched.peak_memory


def test_the_examples_in_docstrings() -> None:
    assert doctest.testmod(overlap_sched) == (0, 4)
    assert doctest.testmod(overlap_sched.peak_memory) == (0, 5)


def loaded_by(script: str) -> set[str]:
    """Modules that are there after a script has run by itself."""
    command = [sys.executable, "-c", f"import sys\n{script}\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_the_core_never_imports_torch() -> None:
    script = (
        "import overlap_sched as o, overlap_sched.cost, overlap_sched.cli.command; o.schedule(o.EXAMPLE)\n"
        "o.pipeline, o.report  # imported when they are asked for"
    )
    assert not {"torch", "matplotlib"} & loaded_by(script)


def test_the_package_alone_loads_neither_torch_nor_what_reads_dumps() -> None:
    unwanted = ("torch", "matplotlib", "rich", "ortools", *(f"overlap_sched.{name}" for name in NEEDS_TORCH))
    for script, more in (
        ("from overlap_sched import schedule", ()),
        ("import overlap_sched.cli.arguments", ("overlap_sched.scheduler", "overlap_sched.report")),
    ):
        assert [name for name in loaded_by(script) if name.startswith((*unwanted, *more))] == []


def test_what_needs_torch_is_there_when_asked_for() -> None:
    assert callable(overlap_sched.schedule_graph)
    assert callable(overlap_sched.load_dump)
    assert overlap_sched.shard is overlap_sched.sharding.shard is overlap_sched.distributed.shard
    assert not hasattr(overlap_sched, "no_such_name")
    with pytest.raises(AttributeError, match=r"has no attribute 'enabel'\. Did you mean enable\?$"):
        overlap_sched.enabel  # noqa: B018
    with pytest.raises(AttributeError, match=r"^write_pages was removed\. Use "):
        overlap_sched.write_pages  # noqa: B018


PACKAGE = Path(overlap_sched.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
ARROWS = [
    *("problem", "judge", "simulate", "peak_memory", "scheduler", "cost", "transform", "pipeline", "fit", "report"),
    *("fx", "dump", "distributed", "sharding", "joint", "inductor", "titan", "deepspeed", "cli"),
]
"""Packages from the bottom up: each imports only those before it."""
NEEDS_TORCH = ("fx", "dump", "sharding", "distributed", "joint", "inductor", "titan", "deepspeed")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(module: str, inside: bool = False) -> set[str]:
    """Modules of the package that a module imports, but for types only; ``inside``: those in functions, too."""
    path = PACKAGE.parent / Path(*module.split("."))
    package = path / "__init__.py"  # an older checkout may have left a folder of caches beside the module
    tree = tree_of(package if package.exists() else path.with_suffix(".py"))
    found: set[str] = set()
    functions = [node for function in functions_of(tree) for node in ast.walk(function)] if inside else []
    for node in (*tree.body, *functions):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names if names <= set(MODULES) else {node.module})
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.split(".")[0] == "overlap_sched" and name != module}


def test_nothing_imports_the_plug_in_of_torchtitan() -> None:
    for module in MODULES:
        if not module.startswith("overlap_sched.titan"):
            assert not any(other.startswith("overlap_sched.titan") for other in imports_of(module)), module


def test_few_modules_stand_at_the_top() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "errors", "options"}


def test_every_package_has_its_place() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ARROWS)


def test_imports_have_no_cycle() -> None:
    """``prepare`` raises a ``CycleError`` that names the modules."""
    graphlib.TopologicalSorter({module: imports_of(module, inside=True) for module in MODULES}).prepare()


def test_arrows_point_one_way() -> None:
    level = {name: k for k, name in enumerate(ARROWS)}
    for module in MODULES:
        for other in imports_of(module):
            here, there = (name.split(".")[1] if "." in name else "" for name in (module, other))
            if here in level and there in level:
                assert level[there] <= level[here], f"{module} imports {other}, which stands above it"


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    """Times, memory and rules are counted twice: by ``simulate`` and the scheduler, and by the judge.

    The judge knows the problem alone; of the scheduler only its driver knows the judge.
    """
    shared = ("overlap_sched.problem", "overlap_sched.errors")
    for module in MODULES:
        for other in imports_of(module):
            if module.startswith("overlap_sched.judge."):
                assert other.startswith((*shared, "overlap_sched.judge.")), f"{module} imports {other}"
            elif module.startswith(("overlap_sched.simulate", "overlap_sched.scheduler")):
                assert not other.startswith("overlap_sched.judge") or module.endswith("scheduler.driver"), module


@pytest.mark.parametrize("module", MODULES)
def test_an_import_gives_the_module(module: str) -> None:
    """``import a.b as c`` looks ``b`` up in ``a``: nothing else there may have the name of a module."""
    if module.endswith("__main__"):
        return
    if module.split(".")[1:2] and module.split(".")[1] in NEEDS_TORCH:
        pytest.importorskip("torch")
    if module.split(".")[1:2] == ["titan"]:
        pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    loaded = importlib.import_module(module)
    parent, _, name = module.rpartition(".")
    if parent:
        assert getattr(importlib.import_module(parent), name) is loaded


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_docstrings_of_functions_do_not_begin_as_a_question() -> None:
    """They begin with a verb ("Return what ..."), those of properties with what it is ("The ...")."""
    for path in PACKAGE.rglob("*.py"):
        for function in functions_of(tree_of(path)):
            words = (ast.get_docstring(function) or "").split()
            assert words[:1] not in (["What"], ["Whether"], ["Of"]), f"{path.name}: {function.name}: {words[:5]}"


@pytest.mark.parametrize("package", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=lambda path: path.name)
def test_no_two_classes_of_a_package_have_one_name(package: Path) -> None:
    trees = [tree_of(path) for path in package.glob("*.py")]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


ROOT = PACKAGE.parent
BUDGETS = {  # code lines and files; never raised
    "overlap_sched": (27_000, 240),
    "llama_repro": (4_500, 64),
    "scripts": (3_500, 50),
    "tests": (30_000, 240),
}
MODULE_OF_THE_CORE = 500  # code lines
DOCUMENTS, PAGES = 2_655, 21  # lines; records apart


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_keeps_to_its_budget(folder: str) -> None:
    """A budget that is not kept is a question: what does the addition earn, and what can go for it?"""
    paths, (lines, files) = list((ROOT / folder).rglob("*.py")), BUDGETS[folder]
    assert len(paths) <= files
    assert sum(map(code_lines_of, paths)) <= lines


def code_lines_of(path: Path) -> int:
    """Lines that hold code: no docstring, comment or blank line."""
    tree, text = tree_of(path), path.read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in skipped for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@pytest.mark.parametrize("folder", ["problem", "simulate", "judge", "peak_memory", "scheduler"])
def test_a_module_of_the_core_is_one_algorithm(folder: str) -> None:
    long = {path.name: code_lines_of(path) for path in (PACKAGE / folder).rglob("*.py")}
    assert {name: lines for name, lines in long.items() if lines > MODULE_OF_THE_CORE} == {}


SEARCHES = ("fit", "joint", "peak_memory", "pipeline", "scheduler", "transform")
"""Packages whose numbers stand in a class ``Tuning``."""
FACTS = {
    *("cut.INF", "cut.SOURCE, SINK", "admission.LOWEST", "admission.THIS_STEP", "replay.NONE"),  # marks
    *("task.SAME_STEP", "explain._ROUNDING", "improve.SAME", "best.OF_A_BOUND", "compare.LEAST"),  # rounding
    *("peak.IDLE_SHARE, IDLE_STEPS", "capacity.BINDING", "layers.ALIKE"),  # what is called saved, binding, a layer
    *("dimensions.GATHERED, REDUCED, UPDATED", "action.MAX_ACTIVE_STAGES"),  # bytes of a parameter; as in torch
    *("compare.FEW", "graphs.OFFERED", "job_file.MAX_ACTIONS", "job_file.SHOWN"),  # what may be asked for and is shown
}


def is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return type(value.value) in (int, float)
        case ast.Tuple() | ast.List():
            return bool(value.elts) and all(map(is_number, value.elts))
        case ast.UnaryOp():
            return is_number(value.operand)
        case ast.BinOp():
            return is_number(value.left) and is_number(value.right)
    return False


def test_numbers_that_tune_are_few_and_say_what_they_win() -> None:
    fields = dict[str, str]()
    for path in PACKAGE.rglob("*.py"):
        for found in (node for node in tree_of(path).body if isinstance(node, ast.ClassDef) and node.name == "Tuning"):
            for at, node in enumerate(found.body):
                if isinstance(node, ast.AnnAssign):
                    said = ast.unparse(found.body[at + 1]) if at + 1 < len(found.body) else ""
                    fields[f"{path.parent.name}: {ast.unparse(node.target)}"] = said
    assert len(fields) <= 60
    assert [name for name, said in fields.items() if not re.search(r"\d|price", said)] == []


def test_no_other_number_tunes_a_search() -> None:
    found = set[str]()
    for path in (path for folder in SEARCHES for path in (PACKAGE / folder).glob("*.py")):
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_number(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.add(f"{path.stem}.{', '.join(ast.unparse(one).strip('()') for one in targets)}")
    assert found == FACTS


def test_documents_keep_to_their_budget() -> None:
    pages = list((ROOT / "docs").glob("*.md"))
    assert len(pages) <= PAGES
    assert lines_of(pages) <= DOCUMENTS
