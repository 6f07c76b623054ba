"""``bftrainer help`` and the example in each verb's help."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bftrainer.cli.codes import additions, meanings, texts
from bftrainer.cli.main import all_verbs, cli, main
from bftrainer.cli.options import range_in_words
from bftrainer.cli.sentences import CODE, Sentence, sentences
from bftrainer.model.errors import ExitCode

ROOT = Path(__file__).parents[3]
Output = pytest.CaptureFixture[str]


def below(verb: str) -> Iterator[click.Context]:
    """Yield the contexts of a verb and, if it is a group, of its verbs."""
    todo = [(click.Context(cli, info_name="bftrainer", **cli.context_settings), verb)]
    for parent, name in todo:
        assert isinstance(parent.command, click.Group)
        command = parent.command.get_command(parent, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
        if isinstance(command, click.Group):
            todo += [(context, inner) for inner in command.list_commands(context)]
        yield context


@pytest.mark.parametrize("verb", all_verbs())
def test_the_example_of_every_verb_is_a_command_line_of_it(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    called: list[str] = []
    monkeypatch.setattr(click.Command, "invoke", lambda _, ctx: called.append(ctx.command_path))
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, *_: Path(value))  # none exists
    for context in below(verb):
        lines = context.command.get_help(context).splitlines()
        assert max(map(len, lines)) <= 80
        line = lines[-1].partition("Example: ")[2]
        program, *words = shlex.split(line)
        assert (program, main(words)) == ("bftrainer", ExitCode.OK), capsys.readouterr().err
        if isinstance(context.command, click.Group):
            assert called[-1].startswith(f"{context.command_path} ")
        else:
            assert called[-1] == context.command_path


# What a program's author writes, and help that ends in the middle of a sentence.
JARGON = re.compile(r"\b(INTEGER|FLOAT) RANGE|\bINTEGER\b|\bFLOAT\b|x[<>]|<=x|[^\]]\.\.\.$")


@pytest.mark.parametrize("width", [60, 80])
def test_the_help_of_every_verb_fits_and_says_what_each_option_is(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for verb in all_verbs():
        for context in below(verb):
            command, where = context.command, context.command_path
            silent = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
            hidden = [p.opts for p in command.params if isinstance(p, click.Option) and p.hidden]
            assert [names for names in silent if names not in hidden] == [], where
            for line in click.Context(
                command, info_name=context.info_name, parent=context.parent
            ).get_help().splitlines():  # fmt: skip
                # What is typed is not wrapped: examples, and the choices of an option.
                is_copied = re.match(r" *(Example: |Usage: |\[)|  --\S+ \[\S+\]$", line)
                assert len(line) <= width or is_copied or len(line.split()) == 1, (where, line)
                assert not JARGON.search(line) or is_copied, (where, line)


def test_verbs_are_listed_by_who_uses_them(capsys: Output) -> None:
    assert main(["-h"]) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert titles == [
        "Options",
        "Begin here",
        "Your trainers",
        "See what happens",
        "Administrators",
        "Before there is a site, and research",
        "Help",
    ]
    for title, verb in (
        ("Begin here", "try"),
        ("Your trainers", "submit"),
        ("See what happens", "explain"),
        ("Administrators", "doctor"),
        ("Before there is a site, and research", "whatif"),
    ):
        verbs = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert re.search(rf"^  {verb} ", verbs, re.MULTILINE)
    for word in ("trainer", "daemon", "pilot"):
        assert re.search(rf"\b{word}\b", text.partition("Options:")[0])  # explained first
    # Each help line names a command that works.
    for words in ("try -h", "help BFT-1310", "help tutorial", "help --pages"):
        assert main(words.split()) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("x>=1", "at least 1"),
        ("x>0", "above 0"),
        ("0.1<=x<=86400.0", "0.1 to 86400"),
        ("0<x<=9", "above 0 to 9"),
        ("x<=3", "x<=3"),
    ],
)
def test_a_range_is_read_in_words(written: str, read: str) -> None:
    assert range_in_words(written) == read


def test_the_help_of_a_verb_is_its_own(capsys: Output) -> None:
    for words in ([], ["status"], ["study", "run"], ["profile", "allreduce"]):
        assert main(["help", *words]) == 0
        by_help = capsys.readouterr().out
        assert main([*words, "-h"]) == 0
        assert by_help == capsys.readouterr().out


def test_the_meaning_of_a_code(capsys: Output) -> None:
    assert main(["help", "BFT-1004"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("BFT-1004: command line and submission\n\n")
    assert "\nThere is no trainer TRAINER_ID.\nnext: List them with: bftrainer status\n" in said
    assert said.endswith(" More: 'bftrainer help cli'\n")
    for word in ("1004", "bft1004"):
        assert main(["help", word]) == 0
        assert capsys.readouterr().out == said


def test_what_is_not_known(capsys: Output) -> None:
    assert main(["help", "BFT-1011"]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == (
        "error BFT-1070: There is no error BFT-1011.\n"
        "next: The nearest are BFT-1009, BFT-1010, BFT-1012.\n"
    )
    for words in (["frobnicate"], ["study", "frobnicate"], ["status", "all"]):
        assert main(["help", *words]) == ExitCode.USAGE
        assert capsys.readouterr().err.startswith("error BFT-1000: ")


@pytest.fixture(scope="module")
def codes() -> set[str]:
    """All that the product names."""
    return {code for text in texts() for code in CODE.findall(text)}


@pytest.fixture(scope="module")
def read() -> list[Sentence]:
    """All that it says of them."""
    return [one for text in texts() for one in sentences(text)]


def test_every_code_in_the_product_has_causes_and_a_next_step(
    codes: set[str], read: list[Sentence]
) -> None:
    explained = meanings(read)
    assert set(explained) == codes
    assert len(codes) > 380
    for code, meaning in explained.items():
        assert meaning.causes, code
        for next_step, causes in meaning.causes.items():
            assert all(re.search("[a-z]{2}", said) for said in (next_step, *causes)), code
        assert all((ROOT / page).is_file() for page in meaning.page.split(", "))


def test_no_sentence_is_written_twice(read: list[Sentence]) -> None:
    """``codes.ini`` adds what is not said where the error is raised, and nothing else."""
    more = additions()
    given = {(code, option) for code in more.sections() for option in more[code]}
    assert {option for _, option in given} == {"cause", "next"}
    caused = {(one.code, "cause") for one in read if one.cause and not one.is_log}
    advised = {(one.code, "next") for one in read if one.next_step}
    assert given & (caused | advised) == set()


def test_the_documents_name_codes_that_exist(codes: set[str]) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {
        code
        for page in pages
        if "adr" not in page.parts and page.name != "add-batch-system.md"  # its own example
        for code in CODE.findall(page.read_text("utf-8"))
    }
    assert named - codes == set()


SAID = Sentence(code="BFT-1999", cause="There is no NAME.", next_step="Name another one.")
RAISED = """\
E("BFT-1999", f"There is no {name!r}.", "Name another one.")

Failed(code="BFT-1999", cause=f"There is no {name[:9]}.", next_step="Name another one.")

CODE = "BFT-1999"
E(CODE, f"There is no {shown(name)}.", "Name another one.")

complain("BFT-1999", line, 7, f"There is no {name}.", "Name another one.")

no = partial(E, "BFT-1999")
no(f"There is no {name}.", "Name another one.")

def no(why): E("BFT-1999", why, NEXT)
NEXT = "Name another one."
no(f"There is no {name}.")

def no():
    why, then = f"There is no {x.name}.", "Name another one."
    E("BFT-1999", why, then)

def no():
    more = f" of {x}" if x else ""
    E("BFT-1999", f"There is no {name}{more}.", "Name another one.")

_CAUSES = {"BFT-1999": "There is no {name}."}
_NEXT_STEPS = {"BFT-1999": "Name another one."}
"""


@pytest.mark.parametrize("source", RAISED.split("\n\n"))
def test_a_sentence_is_read_where_an_error_is_raised(source: str) -> None:
    assert set(sentences(source)) == {SAID}


def test_rows_of_findings_and_lines_of_logs_are_read() -> None:
    row = 'T = FindingTable("""\nBFT-1998 harm slow\nN={n:g}\nIt is\nslow.\n-> N is less\n""")'
    assert [*sentences(row)] == [
        Sentence(code="BFT-1998", cause="N=N: It is slow.", next_step="N is less")
    ]
    log = 'log.warning("BFT-1999: %s is gone", node)'
    assert [*sentences(log)] == [
        Sentence(code="BFT-1999", cause="... is gone", next_step="", is_log=True)
    ]
    assert [*sentences('"""Raises BFT-1999: it is gone."""\nx = "see BFT-1999"')] == []


def test_a_line_of_a_log_gives_way_to_the_error() -> None:
    log = 'log.warning("BFT-1001: %s is gone", node)'
    raised = 'raise E("BFT-1001", "There is no node.", "Look.")'
    found = meanings([*sentences(log), *sentences(raised)])
    assert found["BFT-1001"].causes == {"Look.": ["There is no node."]}


@pytest.mark.parametrize(
    ("code", "area"),
    [
        ("BFT-1460", "command line and submission"),  # the page of demo and try, not the script
        ("BFT-1333", "command line and submission"),
        ("BFT-1455", "the script and its workers"),
        ("BFT-1549", "simulator and analysis"),
        ("BFT-1553", "batch systems"),
        ("BFT-1582", "the journal"),
        ("BFT-2127", "the journal"),
        ("BFT-2125", "policy files and decisions"),
    ],
)
def test_a_code_is_of_the_area_that_its_sentence_is_of(
    code: str, area: str, capsys: Output
) -> None:
    assert main(["help", code]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{code}: {area}"
