"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import gc
import io
import re
import shutil
import sys
import tokenize
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.house import House

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
MAX_LINES = 800
MAX_FUNCTION_LINES = 60
SERIALISERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
CLOCKS = {
    *("monotonic", "perf_counter", "process_time", "thread_time"),
    *("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns"),
}
PROCESS_MODULES = {"multiprocessing", "pty", "_posixsubprocess"}
PROCESS_CALLS = {
    "os": ("system", "popen", "fork", "exec", "spawn", "posix_spawn"),
    "subprocess": ("Popen", "run", "call", "check_", "getoutput", "getstatusoutput"),
    "asyncio": ("create_subprocess",),
}
# In a user's process and its template there is nothing of ours but bftrainer.elastic.
MAY_START_PROCESSES = (
    *("bftrainer/batch/process.py", "bftrainer/lab/parallel.py", "bftrainer/elastic/"),
    "bftrainer/site/submit/helper.py",  # one file that imports nothing of ours
)


@cache
def _modules(*tops: str) -> tuple[Path, ...]:
    found = [p for top in tops for p in (ROOT / top).rglob("*.py")]
    return tuple(sorted(p for p in found if "__pycache__" not in p.parts))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _no_collector() -> Iterator[None]:
    """To look for garbage among all these nodes, which stay, takes longer than to parse them."""
    gc.disable()
    yield
    _nodes.cache_clear()
    _tree.cache_clear()
    gc.enable()


def _product() -> tuple[Path, ...]:
    return _modules(*PACKAGES)


def _everything() -> tuple[Path, ...]:
    return _modules(*PACKAGES, "scripts", "tests")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import, wherever it is."""
    for found in nodes:
        if isinstance(found, ast.Import):
            yield from ((found.lineno, alias.name.split(".")[0]) for alias in found.names)
        elif isinstance(found, ast.ImportFrom) and found.module and not found.level:
            yield found.lineno, found.module.split(".")[0]


def test_there_is_something_to_judge() -> None:
    assert len(_product()) > 50
    assert {_name(p).split("/")[0] for p in _product()} == set(PACKAGES)


def test_no_module_is_longer_than_800_lines() -> None:
    lengths = {_name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in _everything()}
    assert {n: k for n, k in lengths.items() if k > MAX_LINES} == {}


@pytest.fixture(scope="module")
def house() -> House:
    return House(ROOT)


def test_rooms_are_few_and_import_downward(house: House) -> None:
    assert len(house.entries()) <= 13
    assert not house.upward()


def test_names_are_nouns_and_mean_one_thing(house: House) -> None:
    assert len(house.clashes()) <= 10
    assert len(house.participles()) <= 0.03 * len(house.product)


def test_docstrings_say_and_do_not_ask(house: House) -> None:
    assert max(house.questions()) <= 3.0  # per cent


def test_no_user_is_he() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = [p for p in pages if "adr" not in p.parts] + [
        p for p in _product() if "testcluster" not in p.parts
    ]
    found = {
        f"{_name(path)}:{number}"
        for path in texts
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1)
        if re.search(r"\b([Hh]e|him|his|His|himself)\b(?!'s range)", line)
    }
    assert found == set()


def test_documents_name_files_that_exist() -> None:
    tops = "|".join((*PACKAGES, "scripts", "tests"))
    named = re.compile(rf"(?<![\w/.-])((?:{tops})/[\w/]+\.(?:py|sh|json|md))")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = {p: p.read_text("utf-8") for p in pages if "adr" not in p.parts}
    found = {(_name(p), path) for p, text in texts.items() for path in named.findall(text)}
    past = {"CHANGELOG.md"}
    assert {one for one in found if one[0] not in past and not (ROOT / one[1]).exists()} == set()


def test_equipment_is_for_the_demonstration_alone() -> None:
    users = {
        _name(path)
        for path in _product()
        if "testcluster" not in path.parts
        for node in _nodes(path)
        if isinstance(node, ast.ImportFrom) and "testcluster" in (node.module or "")
    }
    assert users == {"bftrainer/lab/demo/lsf_site.py"}


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_tests_lie_as_the_code_does(kind: str) -> None:
    rooms = {path.name for path in (ROOT / "bftrainer").iterdir() if path.is_dir()}
    may = rooms.union(PACKAGES, ("scripts", "house"))
    top = ROOT / "tests" / kind
    files = {path for path in _modules(f"tests/{kind}") if path.name.startswith("test_")}
    assert files
    assert {
        _name(path) for path in files if path.parent.relative_to(top).as_posix() not in may
    } == set()


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {
        f"{_name(path)}:{found.name}": found.end_lineno - found.lineno + 1
        for path in _product()
        for found in _nodes(path)
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
        and found.end_lineno is not None
        and found.end_lineno - found.lineno >= MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_no_command_goes_through_a_shell() -> None:
    found = [
        f"{_name(path)}:{call.lineno}"
        for path in _everything()
        for call in _nodes(path)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "shell"
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]
    assert found == []


def test_no_module_unpickles() -> None:
    found = [
        f"{_name(path)}:{line} {name}"
        for path in _everything()
        for line, name in _imported(_nodes(path))
        if name in SERIALISERS
    ]
    assert found == []


def test_one_module_starts_processes() -> None:
    others = [p for p in _product() if not _name(p).startswith(MAY_START_PROCESSES)]
    found = [
        f"{_name(path)}:{line} imports {name}"
        for path in others
        for line, name in _imported(_nodes(path))
        if name in PROCESS_MODULES
    ]
    found += [f"{_name(path)}:{where}" for path in others for where in _starts(_nodes(path))]
    assert found == []


def _starts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Calls that start a process, and names imported so that a call would not show."""
    for found in nodes:
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
            module, name = ast.unparse(found.func.value), found.func.attr
            if name.startswith(PROCESS_CALLS.get(module, ("\0",))):
                yield f"{found.lineno} {module}.{name}"
        elif isinstance(found, ast.ImportFrom) and found.module in PROCESS_CALLS:
            starters = PROCESS_CALLS[found.module]
            names = [alias.name for alias in found.names if alias.name.startswith(starters)]
            yield from (f"{found.lineno} from {found.module} import {name}" for name in names)


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(['ls'])",
        "subprocess.Popen(argv)",
        "os.system('ls')",
        "os.execv(path, argv)",
        "os.posix_spawn(path, argv, env)",
        "asyncio.create_subprocess_exec('ls')",
        "from subprocess import Popen",
        "from os import fork",
    ],
)
def test_a_start_would_be_seen(line: str) -> None:
    assert len(list(_starts(ast.walk(ast.parse(line))))) == 1


def test_a_type_is_no_start() -> None:
    harmless = "import subprocess\nx: subprocess.Popen[bytes]\ny = subprocess.STDOUT\nos.kill(1, 2)"
    assert list(_starts(ast.walk(ast.parse(harmless)))) == []


def test_one_function_names_a_python_of_ours() -> None:
    """Without -P or -I a module in the working directory, whoever put it there, runs as the user.

    ``submit`` asks the user's interpreter, which may not know -P yet: in /, or with "" taken out.
    """
    asks = ("bftrainer/cli/submit_checks.py", "bftrainer/cli/module_script.py")
    may = ("bftrainer/batch/process.py", *asks, "bftrainer/elastic/")
    found = [
        f"{_name(path)}:{where}"
        for path in _product()
        if not _name(path).startswith(may)
        for where in _open_pythons(_nodes(path))
    ]
    assert found == []


def _open_pythons(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Command lines with -m or -c that a Python may get, but not with -I or -P before."""
    for found in nodes:
        if not isinstance(found, ast.List | ast.Tuple):
            continue
        words = [e.value if isinstance(e, ast.Constant) else None for e in found.elts]
        for at, word in enumerate(words):
            before = words[:at]
            is_shell = any(isinstance(one, str) and one.endswith("sh") for one in before)
            if word in ("-m", "-c") and before and not is_shell and not {"-I", "-P"} & {*before}:
                yield f"{found.lineno} {ast.unparse(found)[:60]}"


@pytest.mark.parametrize(
    ("line", "n"),
    [
        ('(sys.executable, "-m", "bftrainer")', 1),
        ('[*prefix, *(python, "-m", "bftrainer.cli.main")]', 1),
        ('(sys.executable, "-c", "import torch")', 1),
        ('(sys.executable, "-I", "-m", "trainers.agent")', 0),
        ('("/bin/sh", "-c", ":")', 0),
        ('("-m", node, "-n", "1")', 0),
    ],
)
def test_an_open_python_would_be_seen(line: str, n: int) -> None:
    assert len(list(_open_pythons(ast.walk(ast.parse(line))))) == n


# What else reads files where users' files are, and how often: nobody else can put those there.
READS = {
    "bftrainer/cli/codes.py": 2,  # of the installed package
    "bftrainer/cli/common.py": 1,  # the journal, which looks itself
    "bftrainer/cli/journal.py": 1,
    "bftrainer/lab/verbs/reproduce.py": 1,  # tries whether it can be written
    "bftrainer/cli/site.py": 1,  # of root
    "bftrainer/lab/verbs/solve.py": 1,  # a pipe is as good
    "bftrainer/cli/step_probes.py": 2,  # in a directory made a moment before
    "bftrainer/elastic/network/device.py": 1,  # /proc
    "bftrainer/ground/fence.py": 1,  # a directory
    "bftrainer/elastic/mpi/membership.py": 1,  # what runtime ``command`` made
    "bftrainer/ground/ports.py": 1,  # /proc
    "bftrainer/ground/regular_file.py": 4,
    "bftrainer/elastic/loop/try_record.py": 2,  # in the scratch directory of ``try``
    "bftrainer/ground/versions.py": 1,  # torch's own, as it is imported
    "bftrainer/elastic/worker.py": 1,  # /dev/null
    "bftrainer/elastic/process/worker_keeper.py": 3,  # /proc
    "bftrainer/api/checkpoint_files.py": 1,  # a copy in a directory made a moment before
    "trainers/agent/preambles.py": 1,  # in the pilot's own directory, as the next two
    "trainers/agent/programs.py": 1,
    "trainers/agent/start.py": 2,  # the second: a directory
    "trainers/profiler/steps.py": 1,  # /proc
}
ROOMS_OF_USERS = (
    *("bftrainer/cli", "bftrainer/elastic", "bftrainer/ground", "bftrainer/study", "trainers/"),
    *("bftrainer/lab/verbs", "bftrainer/api/checkpoint_files.py"),
)
VERBS = ("bftrainer/cli", "bftrainer/lab/verbs", "bftrainer/study/verbs")


def test_files_that_others_may_have_made_are_opened_by_one_function() -> None:
    found = {
        _name(path): n
        for path in _product()
        if _name(path).startswith(ROOMS_OF_USERS) and "/examples/" not in _name(path)
        if (n := len(list(_reads(_nodes(path)))))
    }
    assert found == READS


def _reads(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Calls that open a file for reading or appending in another way than ``regular_file``."""
    for found in nodes:
        if not isinstance(found, ast.Call):
            continue
        name = ast.unparse(found.func)
        words = [ast.unparse(one) for one in (*found.args, *(k.value for k in found.keywords))]
        is_new = any(word.strip("'\"").startswith(("x", "w")) for word in words[:2])
        is_open = name.rpartition(".")[2] == "open" and bool(words) and "counters" not in words
        if (is_open and not is_new) or name.endswith((".read_text", ".read_bytes")):
            yield found.lineno


@pytest.mark.parametrize(
    ("line", "n"),
    [
        ("open(path)", 1),
        ("path.open('ab')", 1),
        ("os.open(path, os.O_RDONLY)", 1),
        ("Path(name).read_text()", 1),
        ("(path / SUMMARY).read_bytes()", 1),
        ("path.open('xb')", 0),
        ("read_file(path, 10)", 0),
        ("opened(path)", 0),
    ],
)
def test_a_read_would_be_seen(line: str, n: int) -> None:
    assert len(list(_reads(ast.walk(ast.parse(line))))) == n


# Files to install and JSON, which escapes; a line that is drawn anew; what imports no more.
RAW = {
    "bftrainer/cli/help.py": 1,  # pages, which are ours, with bold and colours
    "bftrainer/cli/main.py": 1,
    "bftrainer/cli/output.py": 4,
    "bftrainer/lab/verbs/reproduce.py": 1,
    "bftrainer/cli/site.py": 1,
    "bftrainer/study/verbs/run.py": 3,
}


# Of all that enters a plan or a simulation, every digit is the same on all processors.
DIGITS_MATTER = (
    *("milp", "bftrainer/decide", "bftrainer/model"),
    *("bftrainer/lab/simulator", "bftrainer/lab/whatif"),
)
BLAS = {"dot", "vdot", "inner", "matmul", "vecdot", "matvec", "vecmat", "tensordot", "einsum"}
BLAS |= {"linalg", "polyfit", "corrcoef", "cov", "convolve", "correlate"}
OF_LIBRARY = {
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "pow",
    "power",
    "float_power",
}
OF_LIBRARY |= {"hypot", "cbrt", "interp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "logaddexp"}
OF_LIBRARY |= {"gamma", "lgamma", "erf", "geometric_mean", "stdev", "pstdev", "NormalDist"}
LIBRARIES = {"math", "np", "numpy", "statistics"}
MAY_HANG_ON_THE_PROCESSOR = {
    # Scores of a network are rounded to six digits before they are compared and told (``Best``).
    "bftrainer/decide/policies/dl2.py",
    "bftrainer/decide/policies/dl2_network.py",
}


def _hangs_on_the_processor(node: ast.AST) -> str:
    """Return what of an expression is not the same everywhere; "": nothing."""
    what = ""
    match node:
        case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
            what = "@"
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.Pow(), right=ast.Constant()):
            pass
        case ast.BinOp(op=ast.Pow()) | ast.AugAssign(op=ast.Pow()):
            what = "**"  # also of whole numbers: nobody sees which they are
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in LIBRARIES:
            what = name if name in BLAS | OF_LIBRARY else ""
        case ast.ImportFrom(module=("math" | "statistics" | "numpy")):
            what = " ".join(a.name for a in node.names if a.name in BLAS | OF_LIBRARY)
        case ast.Call(func=ast.Attribute(attr="argpartition" | "dot" as name)):
            what = name  # argpartition: which of equal ones it takes
        case ast.Call(func=ast.Attribute(attr="argsort")):
            is_stable = any(ast.unparse(one) == "kind='stable'" for one in node.keywords)
            what = "" if is_stable else "argsort"
    return what


def test_no_plan_hangs_on_the_processor() -> None:
    hanging = {
        f"{_name(path)}:{getattr(node, 'lineno', 0)}: {what}"
        for path in (*_modules(*DIGITS_MATTER), ROOT / "bftrainer/lab/workloads.py")
        for node in _nodes(path)
        if _name(path) not in MAY_HANG_ON_THE_PROCESSOR and (what := _hangs_on_the_processor(node))
    }
    assert hanging == set()  # milp/portable.py has what may be used instead


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("total = weights @ rates", "@"),
        ("total @= rates", "@"),
        ("np.linalg.solve(a, b)", "linalg"),
        ("np.einsum('ij,j->i', a, b)", "einsum"),
        ("rows.dot(parts)", "dot"),
        ("np.interp(at, xs, ys)", "interp"),
        ("math.exp(-age_s)", "exp"),
        ("from math import log2", "log2"),
        ("from statistics import geometric_mean, median", "geometric_mean"),
        ("0.5**halvings", "**"),
        ("size ** 2", "**"),
        ("np.argsort(-scores)", "argsort"),
        ("gains.argpartition(-9)", "argpartition"),
        ("np.argsort(-scores, kind='stable')", ""),
        ("np.add.reduce(rates)", ""),
        ("math.fsum(rates) / math.sqrt(2.0)", ""),
        ("2**63 - 10**9", ""),
        ("exp2(-halvings)", ""),
    ],
)
def test_what_hangs_on_the_processor_would_be_seen(line: str, what: str) -> None:
    seen = {_hangs_on_the_processor(node) for node in ast.walk(ast.parse(line))}
    assert seen - {""} == ({what} if what else set())


def test_lines_for_people_are_escaped() -> None:
    """Verbs print by ``cli.output``, which escapes what others have written into a text."""
    found = {
        _name(path): n
        for path in _product()
        if _name(path).startswith(VERBS)
        if (n := sum(ast.unparse(one) == "click.echo" for one in _nodes(path)))
    }
    assert found == RAW


def test_no_except_catches_everything_in_silence() -> None:
    found = [
        f"{_name(path)}:{handler.lineno}"
        for path in _everything()
        for handler in _nodes(path)
        if isinstance(handler, ast.ExceptHandler) and _is_silent_catch_all(handler)
    ]
    assert found == []


def _is_silent_catch_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    is_broad = isinstance(handler.type, ast.Name) and handler.type.id in {
        "Exception",
        "BaseException",
    }
    return is_broad and all(isinstance(s, ast.Pass | ast.Continue) for s in handler.body)


def test_no_test_asserts_that_something_was_quick() -> None:
    """A busier or slower machine would fail it; ``tests.support.effort`` compares instead."""
    found = [
        f"{_name(path)}:{line}"
        for path in _modules("tests")
        for function in _nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in _stopwatches(function)
    ]
    assert found == []


def test_a_stopwatch_would_be_seen() -> None:
    text = """def test():
    took_s, limit = time.monotonic() - began, 3
    assert took_s < limit
    assert 1.0 < perf_counter() - began <= 2.0
    assert limit > took_s
    assert took_s > limit
    assert spent < per_s * (time.monotonic() - began)
    assert time.thread_time() - began < effort_s(call)
    assert time.monotonic() < deadline"""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert list(_stopwatches(function)) == [3, 4, 5]


def _stopwatches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Lines that assert an upper bound on a duration that is no duration itself."""
    nodes = list(ast.walk(function))
    asserts = [found for found in nodes if isinstance(found, ast.Assert)]
    if not asserts:
        return
    taken = {
        name.id
        for found in nodes
        if isinstance(found, ast.Assign) and _reads_duration(found.value, set())
        for target in found.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.endswith("_s")
    }
    for found in asserts:
        for compared in ast.walk(found.test):
            if isinstance(compared, ast.Compare):
                sides = [compared.left, *compared.comparators]
                for left, operator, right in zip(sides, compared.ops, sides[1:], strict=False):
                    if isinstance(operator, ast.Gt | ast.GtE):
                        left, right = right, left  # noqa: PLW2901
                    is_quick = _reads_duration(left, taken) and not _reads_duration(right, taken)
                    if is_quick and not isinstance(operator, ast.Eq | ast.NotEq):
                        yield found.lineno


def _reads_duration(part: ast.expr, taken: set[str]) -> bool:
    """Whether an expression has the difference of two readings of a clock in it."""
    for one in ast.walk(part):
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub):
            calls = [x.func for x in ast.walk(one) if isinstance(x, ast.Call)]
            if any(_called(call) in CLOCKS for call in calls):
                return True
        if isinstance(one, ast.Name) and one.id in taken:
            return True
        if isinstance(one, ast.Call) and _called(one.func) == "effort_s":
            return True
    return False


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def test_no_work_is_left_in_comments() -> None:
    found, unfinished = [], {"TODO", "FIXME", "XXX", "HACK"}
    for path in _everything():
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in unfinished):
            continue  # to read every token takes long
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            words = set(token.string.replace(":", " ").split())
            if token.type == tokenize.COMMENT and words & unfinished:
                found.append(f"{_name(path)}:{token.start[0]}")
    assert found == []


def test_everything_public_says_what_it_is_for() -> None:
    found = []
    for path in (*_product(), *_modules("scripts")):
        tree = _tree(path)
        if not ast.get_docstring(tree) and tree.body:
            found.append(_name(path))
        found += [f"{_name(path)}:{where}" for where in _undocumented(tree)]
    assert found == []


def _undocumented(scope: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for found in scope.body:
        if not isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if found.name.startswith("_"):
            continue
        decorators = {ast.unparse(d).split(".")[-1] for d in found.decorator_list}
        if not ast.get_docstring(found) and not decorators & {"setter", "overload", "override"}:
            yield f"{prefix}{found.name}"
        if isinstance(found, ast.ClassDef):
            yield from _undocumented(found, f"{prefix}{found.name}.")


def test_every_package_is_typed() -> None:
    assert [p for p in PACKAGES if not (ROOT / p / "py.typed").is_file()] == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {p.parent for p in _product()}
    # Examples are scripts that users copy, not modules that anybody imports.
    missing = {_name(f) for f in folders if not (f / "__init__.py").is_file()}
    assert missing <= {"trainers/examples"}


def test_the_layers_are_kept() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = process.run([str(linter), "--no-cache"], timeout_s=120.0, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in a wheel built from a copy of the tree."""
    copy = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*PACKAGES, "scripts", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    out = copy / "dist"
    done = process.run([sys.executable, "-c", code, str(out)], timeout_s=120.0, cwd=copy)
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_product_and_nothing_else(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {t for t in tops if not t.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_module_and_marker(wheel: list[str]) -> None:
    expected = {_name(p) for p in _product() if (p.parent / "__init__.py").is_file()}
    expected |= {f"{p}/py.typed" for p in PACKAGES}
    expected |= {f"milp/schema/{kind}.schema.json" for kind in ("problem", "allocation")}
    expected |= {"bftrainer/cli/codes.ini"}
    assert expected - set(wheel) == set()
