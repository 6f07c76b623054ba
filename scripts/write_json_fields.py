"""Write docs/reference/json.md: the fields of the documents of ``--json`` and of the API.

They are read in the dataclasses that the documents are made of: a field's name, its type, and the
comment beside or above it. Of fields that need no comment in the source ``json_meanings.ini`` has
the meaning, or it is the help of the option that the field declares.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from dataclasses import is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from _bench.targets import ROOT

from bftrainer.api.documents import schema
from bftrainer.batch.traces.statistics import IdleTime, TraceStatistics
from bftrainer.cli.array_table import ArrayRow
from bftrainer.cli.sbatch_script.translation import SbatchTranslation
from bftrainer.lab.demo.watch import Summary
from bftrainer.lab.harm.document import Worth
from bftrainer.lab.harm.findings import HarmFindings
from bftrainer.lab.harm.replica import UnplayedJobs
from bftrainer.lab.tryout import TryReport
from bftrainer.lab.whatif.advice import Expected, Replayed, SecondMore, Sweep
from bftrainer.lab.whatif.kept import IdleOverTime, KeptBack, KindOfNodes
from bftrainer.lab.whatif.present import LendingNow
from bftrainer.model.declaration import declarations
from bftrainer.model.reports import AccountReport, HarmReport
from bftrainer.model.site import ShortGaps
from bftrainer.model.study import StudyView
from bftrainer.model.views import (
    DrainView,
    Explanation,
    LogFile,
    NodeView,
    ReloadView,
    StatusView,
    TrainerView,
)
from bftrainer.study.trial_table import StudySummary, TrialRow

PAGE: Final = ROOT / "docs" / "reference" / "json.md"
MEANINGS: Final = ROOT / "scripts" / "json_meanings.ini"
# Document, its class, whether it is a list of these, and what has it.
DOCUMENTS: Final[tuple[tuple[str, type, bool, str], ...]] = (
    ("status", StatusView, False, "`status`, GET `/v1/status`"),
    ("trainer", TrainerView, False, "`status ID`, `submit`, GET `/v1/trainers/ID`"),
    ("trainers", TrainerView, True, "`cancel`, `hold`, `release`, `update`, `requeue`, arrays"),
    ("nodes", NodeView, True, "`nodes`, GET `/v1/nodes`"),
    ("explain", Explanation, False, "`explain ID`, GET `/v1/trainers/ID/explain`"),
    ("logs", LogFile, True, "`logs ID`, GET `/v1/trainers/ID/logs`"),
    ("account", AccountReport, False, "`account`, GET `/v1/account`"),
    ("harm", HarmReport, False, "`report harm`, GET `/v1/harm`"),
    (
        "from-sbatch",
        SbatchTranslation,
        False,
        "`submit --from-sbatch`, and `from_sbatch` in what it submits",
    ),
    ("study-summary", StudySummary, False, "`study status`, `study export`, `summary.json`"),
    ("array", ArrayRow, True, "`status --array ID`"),
    ("trial", TrialRow, False, "`study best`"),
    ("study", StudyView, False, "GET `/v1/studies/STUDY`"),
    ("reload", ReloadView, False, "`policy reload`, POST `/v1/policy/reload`"),
    ("drain", DrainView, False, "POST `/v1/drain`"),
    ("try", TryReport, False, "`try`"),
    ("demo", Summary, False, "`demo`, and `summary.json` of its directory"),
)
# Documents that are no record: schema, what has it, its fields with the classes of what is in them.
COMPOSED: Final[tuple[tuple[str, str, str, tuple[type, ...]], ...]] = (
    (
        "trace-info",
        "`trace info`",
        ("`file`, `span_s` (begin and end, points in time), `fig1` and `fig6` (of the paper), and"
        " the fields of {TraceStatistics}"),
        (TraceStatistics,),
    ),
    (
        "whatif",
        "`whatif`",
        ("`answer`, `trace`, `idle` ({IdleTime}), `recommended` (by the policy's keys), `sweeps`"
        " ({Sweep}), `expected` ({Expected}, a policy each), `one_second_more` ({SecondMore}),"
        " `short_gaps` ({ShortGaps}), `replayed` ({Replayed}), `kept_back` ({KeptBack}),"
        " `with_policy_node_hours_per_day`, `kinds` ({KindOfNodes}), `idle_over_time`"
        " ({IdleOverTime}), `lending_now` ({LendingNow}; null: no Slurm runs here, or nothing is"
        " proposed), `costs_s`, `seed`, `assumptions`, `notes`, `warnings`"),
        (IdleTime, Sweep, Expected, SecondMore, ShortGaps, Replayed, KeptBack, KindOfNodes,
         IdleOverTime, LendingNow),
    ),
    (
        "whatif-harm",
        "`whatif --harm`",
        ("`answers`, `log`, the fields of {HarmFindings}, `worth` ({Worth}), `log_hours`,"
        " `jobs_in_log`, `left_out` ({UnplayedJobs}), `slurm` (the settings of its schedulers),"
        " `policy` (keys that are not the default), `assumptions`, `not_modelled`, `notes`,"
        " `warnings`, `seed`, `took_s`"),
        (HarmFindings, Worth, UnplayedJobs),
    ),
)  # fmt: skip
WORDS: Final = {
    "str": "text", "int": "whole number", "float": "number", "bool": "true or false",
    "None": "null", "Any": "anything",
}  # fmt: skip
HEAD: Final = """\
# JSON fields

Verbs that look at something take `--json`, or `--yaml` for the same document as YAML; the daemon's
[API](cli.md#api) sends the same documents as JSON.
This page says what is in them. It is written by `scripts/write_json_fields.py` from the classes of
which the documents are made.

**What stays** is promised for all of them, as JSON and as YAML. Each document has a field
`schema`, such as `bftrainer/status/1`. Within one number fields are added, but none is renamed or
removed, and none changes its meaning or unit. Ignore the fields that you do not know. The order of
fields means nothing.

**Units** are in the names: `_s` is seconds, `_ms` milliseconds, `_h` node-hours, `_mb` megabytes,
`_mib` mebibytes (1,048,576 bytes), `_percent` hundredths. A point in time, such as `started_s`, is
seconds since 1970 in UTC; a length of time, such as `pause_s`, is seconds. null means: not known,
or does not apply. Text of one sentence is for people and may be worded anew; programs should go by
states, codes and numbers.

An error is `{"schema": "bftrainer/error/1", "error": {"code", "cause", "next_step", "exit_code"}}`
from the API, and two lines on standard error from a verb.

In `account`, harvested is node time that pilots hold, from the start of a pilot's job to its end.
Other documents are described with what makes them: that of `policy show` has the
[settings](policy.md), that of `simulate` and `compare` the [figures of
replays](../design/simulator.md#figures). In `demo`, `whatif` and `policy test` the names that begin
with `harvested` are older than the word: they mean node time in which a trainer *trained*
([glossary](glossary.md#what-becomes-of-idle-node-time)).
"""


def documented() -> list[type]:
    """Return the classes of all documents, and those of their fields."""
    classes = list[type]()
    composed = [cls for *_, parts in COMPOSED for cls in parts]
    for cls in (*(cls for _, cls, *_ in DOCUMENTS), *composed):
        _collect(cls, classes)
    return classes


def page() -> str:
    """Return the page."""
    parts = [HEAD, "## Documents\n"]
    rows = []
    for name, cls, is_list, document in DOCUMENTS:
        words = f"a list `{name}` of" if is_list else "the fields of"
        link = f"[{cls.__name__}](#{cls.__name__.lower()})"
        rows.append(f"| `{schema(name)}` | {document} | {words} {link} |")
    for name, document, fields_of, inside in COMPOSED:
        links = {cls.__name__: f"[{cls.__name__}](#{cls.__name__.lower()})" for cls in inside}
        rows.append(f"| `{schema(name)}` | {document} | {fields_of.format(**links)} |")
    parts.append("\n".join(("| schema | of | has |", "| --- | --- | --- |", *rows, "")))
    by_name = sorted(documented(), key=lambda one: one.__name__)
    return "\n".join((*parts, *("\n".join(_section(cls)) for cls in by_name)))


def _collect(cls: type, classes: list[type]) -> None:
    """Add a class and those of its fields."""
    if cls in classes:
        return
    classes.append(cls)
    names = vars(_module(cls))
    for _, annotation, _ in fields(cls):
        for word in re.findall(r"\w+", annotation):
            if is_dataclass(names.get(word)):
                _collect(names[word], classes)


def _section(cls: type) -> Iterator[str]:
    doc = (inspect.getdoc(cls) or "").partition("\n\n")[0]
    yield from (f"## {cls.__name__}", "", _plain(" ".join(doc.split())), "")
    yield from ("| field | is | meaning |", "| --- | --- | --- |")
    for name, annotation, comment in fields(cls):
        meaning = _plain(comment).replace("|", "or")
        yield f"| `{name}` | {_in_words(annotation, cls)} | {meaning} |"
    yield ""


def _plain(text: str) -> str:
    text = re.sub(r"\bNone\b", "null", text.replace("``", "`"))
    return text.replace("<", "&lt;").replace("*", r"\*")


def _in_words(annotation: str, cls: type) -> str:
    """Return a type for people: a link to a class, or words."""
    kinds = []
    for part in annotation.split(" | "):
        inner = re.fullmatch(r"(?:tuple|Sequence)\[(.+), \.\.\.\]|Sequence\[(.+)\]", part)
        if inner:
            kinds.append(f"list of {_in_words(inner[1] or inner[2], cls)}")
        elif part.startswith(("tuple[", "dict[", "Mapping[")):
            kinds.append("list" if part.startswith("tuple[") else "object")
        elif is_dataclass(vars(_module(cls)).get(part)):
            kinds.append(f"[{part}](#{part.lower()})")
        elif part.startswith("Literal["):
            kinds.append("one of " + part[8:-1].replace('"', "`"))
        else:
            kinds.append(WORDS.get(part, "text"))
    return " or ".join(dict.fromkeys(kinds))


def _module(cls: type) -> ModuleType:
    return sys.modules[cls.__module__]


def fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and comment of each field that is written, as the source has them."""
    comments, lines = _comments(inspect.getsourcefile(cls) or "")
    for node in _class_node(cls).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        annotation = ast.unparse(node.annotation)
        if annotation.startswith("ClassVar"):
            continue
        last = node.end_lineno or node.lineno
        comment = comments.get(last, "")
        above = node.lineno - 1
        while not comment and above in comments and lines[above - 1].lstrip().startswith("#"):
            first = above
            while lines[first - 2].lstrip().startswith("#"):
                first -= 1
            comment = " ".join(comments[number] for number in range(first, above + 1))
        yield (
            node.target.id,
            annotation,
            comment
            or meanings().get(cls.__name__, {}).get(node.target.id, "")
            or _help_of(cls, node.target.id),
        )


def _help_of(cls: type, name: str) -> str:
    """Return what the help says of the option that a field declares; "": it declares none."""
    declaration = declarations(cls).get(name)
    if declaration is None or not declaration.options:
        return ""
    return declaration.options[0].help


@cache
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings that are not in the source, by class and field."""
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(MEANINGS, encoding="utf-8")
    return {name: dict(parser[name]) for name in parser.sections()}


def _class_node(cls: type) -> ast.ClassDef:
    text = Path(inspect.getsourcefile(cls) or "").read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    return classes[cls.__name__]


@cache
def _comments(file: str) -> tuple[Mapping[int, str], tuple[str, ...]]:
    """Return the comments of a file by line, and its lines."""
    text = Path(file).read_text(encoding="utf-8")
    tokens: Any = tokenize.generate_tokens(StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    by_line = {token.start[0]: token.string.lstrip("# ").strip() for token in comments}
    return by_line, tuple(text.splitlines())


def main() -> int:
    """Write it."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
