"""The parts of ``submit --from-sbatch``: directives, commands, values, launchers and sizes."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bftrainer.cli.job_script import OptionJudge
from bftrainer.cli.sbatch_options import OPTIONS
from bftrainer.cli.sbatch_script.directives import read_directives, shell_of
from bftrainer.cli.sbatch_script.job_body import BodyReader
from bftrainer.cli.sbatch_script.launchers import ProgramKind, read_launch
from bftrainer.cli.sbatch_script.shell_lines import read_shell
from bftrainer.cli.sbatch_script.shell_values import (
    INDEX,
    Value,
    all_expanded,
    expanded,
    unknown,
    unknown_parts,
    value_of,
)
from bftrainer.cli.sbatch_script.training_source import imports_of, runtime_of
from bftrainer.cli.sbatch_script.translator import MOST_OBSTACLES
from bftrainer.cli.submit import submit
from tests.unit.cli.test_sbatch_scripts import SCRIPTS, names, translation_of


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("#SBATCH -N2", [("nodes", "2")]),
        ("#SBATCH --nodes=2-4 --gres=gpu:a100:4", [("nodes", "2-4"), ("gres", "gpu:a100:4")]),
        ("#SBATCH -t 1-12 # a day and a half", [("time", "1-12")]),
        ("#SBATCH --job-name='two words'", [("job-name", "two words")]),
        ('#SBATCH -J "a \\"b\\""', [("job-name", 'a "b"')]),
        ("#SBATCH\t--part gpu", [("partition", "gpu")]),  # as short as only one begins
        ("#SBATCH -HQ -n4", [("hold", ""), ("quiet", ""), ("ntasks", "4")]),
        ("#SBATCH --exclusive --exclusive=user", [("exclusive", ""), ("exclusive", "user")]),
        ("#SBATCH -W", [("wait", "")]),
        ("##SBATCH -N2", []),
        ("# SBATCH -N2", []),
        (" #SBATCH -N2", []),
        ("#SBATCH-N2", [("nodes", "2")]),
        ("#SBATCH -J a\\#\\b -N2#", [("job-name", "a#b"), ("nodes", "2")]),
        ("echo\n#SBATCH -N2", []),
        ("\n# text\n\n#SBATCH -N2\r", [("nodes", "2")]),
        ("#SBATCH", []),
    ],
)
def test_directives_are_read_as_sbatch_reads_them(line: str, read: list[tuple[str, str]]) -> None:
    options = read_directives(f"#!/bin/bash\n{line}\n")
    assert [(option.option and option.option.name, option.value) for option in options] == read
    assert not any(option.fault for option in options)


@pytest.mark.parametrize("line", ["--mail=END", "--frobnicate", "-y", "word", "--time", "-J 'a"])
def test_a_directive_that_sbatch_refuses_has_a_fault(line: str) -> None:
    (option,) = read_directives(f"#SBATCH {line}\n")
    assert option.fault


@pytest.mark.parametrize(
    ("first", "shell"),
    [
        ("#!/bin/bash -l", ""),
        ("#!/usr/bin/env bash", ""),
        ("#! /bin/sh", ""),
        ("echo", ""),
        ("#!/bin/tcsh -f", "tcsh"),
        ("#!/usr/bin/env -S python3 -u", "python3"),
        ("#!/opt/R/bin/Rscript", "Rscript"),
        ("#!", "no program"),
    ],
)
def test_the_first_line_names_the_shell(first: str, shell: str) -> None:
    assert shell_of(f"{first}\n") == shell


def test_commands_are_split_as_bash_splits_them() -> None:
    script = read_shell(
        "a 'b c' \"d;e\" # f\n"
        "X=1 g \\\n  h > log 2>&1 && i | j\n"
        "cat <<-END; k\n\tdone \"'\n\tEND\n"
        "L=(1\n 2) m $(n; o) &\n"
        "f() { p; }\n"
    )
    assert [(c.line, c.words, c.joint, c.block) for c in script.commands] == [
        (1, ("a", "'b c'", '"d;e"'), "", 0),
        (2, ("g", "h"), "", 0),
        (3, ("i",), "&&", 0),
        (3, ("j",), "|", 0),
        (4, ("cat",), "", 0),
        (4, ("k",), "", 0),
        (7, ("m", "$(n; o)"), "", 0),
        (9, ("p",), "", 1),
    ]
    assert script.commands[1].redirections == (">log", "2>&1")
    assert script.commands[6].is_background
    assert script.commands[6].assignments == ("L=(1\n 2)",)
    assert [(block.keyword, block.text) for block in script.blocks] == [("function", "f() { p; }")]


@pytest.mark.parametrize(
    "text", ["echo 'a", 'echo "$(b', "if a; then", "for x in a; do b", "fi", ")"]
)
def test_what_never_ends_is_a_fault(text: str) -> None:
    script = read_shell(f"true\n{text}\n")
    assert script.fault
    assert script.fault_line >= 2


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("~/x", ("/home/ada/x",)),
        ("$A", ("x", "y")),
        ('"$A"', ("x y",)),
        ("a$A.b", ("ax", "y.b")),
        ('"${L[@]}"', ("p q", "r")),
        ("${NO:-5}", ("5",)),
        ("$EMPTY", ()),
        ('""', ("",)),
        ("'$A'", ("$A",)),
        ("\\$A", ("$A",)),
        ("run-$I", (f"run-{INDEX}",)),
        ("{index}", ("{index}",)),
        ("$NO", (unknown("$NO"),)),
        ("$(date)", (unknown("$(date)"),)),
        ("a*.npz", (f"a{unknown('*')}.npz",)),
        ("{1..3}", (unknown("{1..3}"),)),
        ("[", ("[",)),
    ],
)
def test_values_are_those_that_the_text_says(word: str, values: tuple[str, ...]) -> None:
    variables: dict[str, Value] = {
        "HOME": "/home/ada", "A": "x y", "L": ("p q", "r"), "I": INDEX, "EMPTY": "",
    }  # fmt: skip
    assert expanded(word, variables) == values


PIECES = st.sampled_from(
    ("$A", "${A}", "$E", "${E:-d}", "${N:-d e}", "${B-d}", "'", '"', "\\", "a", "b c", " ", "=",
     "--x", "{index}", "~", "~/x", "#", "\\$A", "\\\n", '\\"', ",", ":", "[",
     "${L[@]}", "$L", "\u00e9")
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(PIECES, min_size=1, max_size=12).map("".join))
@example("'a\\\nb' \"c\\\nd\" e\\\nf")
@example("x=~/y --x=~/y ~ada/y")
def test_words_have_the_values_that_bash_gives_them(words: str) -> None:
    line = f"printf '%s\\0' '' {words}\n"
    script = read_shell(line)
    variables: dict[str, Value] = {
        "A": "x y", "B": "b", "E": "", "HOME": "/home/ada", "L": ("p q", "r"),
    }  # fmt: skip
    if script.fault or len(script.commands) != 1:
        return
    _, _, _, *typed = script.commands[0].words
    values = all_expanded(typed, variables)
    if any(unknown_parts(value) for value in values):
        return
    settings_of = "A='x y'; B=b; E=; HOME=/home/ada; L=('p q' r); unset N; set -f; set +H\n"
    done = subprocess.run(
        ("/bin/bash", "--norc", "-c", settings_of + line), capture_output=True, check=False
    )
    if done.returncode == 0:
        assert done.stdout.decode().split("\0")[1:-1] == list(values)


def test_a_list_and_what_is_added_to_it() -> None:
    reader = BodyReader({}, "/home/ada")
    reader.read(read_shell("A=(--lr 0.1)\nA+=(--name 'b c')\nB=x\nB+=y\n"))
    assert reader.variables["A"] == ("--lr", "0.1", "--name", "b c")
    assert reader.variables["B"] == "xy"
    assert value_of("(a 'b c')", {}) == ("a", "b c")


@pytest.mark.parametrize(
    ("line", "program", "args", "launchers"),
    [
        ("python -u -W ignore train.py --lr 1", "train.py", ("--lr", "1"), []),
        ("srun -n4 -lu --mpi pmix python train.py", "train.py", (), ["srun"]),
        (
            "srun torchrun --nnodes 2 --standalone t.py -m x",
            "t.py",
            ("-m", "x"),
            ["srun", "torchrun"],
        ),
        ("python -m torch.distributed.launch --nproc_per_node=2 t.py", "t.py", (), ["torchrun"]),
        ("accelerate launch --multi_gpu --num_processes 8 t.py", "t.py", (), ["accelerate"]),
        ("mpirun -np 4 --mca btl tcp -x A=1 python t.py", "t.py", (), ["mpirun"]),
        ("horovodrun -np 8 --gloo python t.py", "t.py", (), ["horovodrun"]),
        ("time env A=1 numactl -l nice -n 5 timeout 1h python3.12 t.py", "t.py", (), []),
        ("apptainer exec --nv -B /a image.sif python t.py", "t.py", (), []),
        ("nsys profile -o out -f true python t.py", "t.py", (), []),
    ],
)
def test_launchers_fall_away(
    line: str, program: str, args: tuple[str, ...], launchers: list[str]
) -> None:
    launch = read_launch(tuple(shlex.split(line)))
    assert launch.kind is ProgramKind.SCRIPT
    assert (launch.program, launch.args, launch.launchers) == (program, args, launchers)


@pytest.mark.parametrize(
    ("directives", "line", "sizes"),
    [
        ("-N4", "srun python t.py", "--nodes 1:4"),
        ("-N2-4", "srun python t.py", "--nodes 2:4"),
        ("-N2 --ntasks-per-node=8", "srun python t.py", "--nodes 1:2 --workers-per-node 8"),
        ("-N2 -n16", "srun python t.py", "--nodes 1:2 --workers-per-node 8"),
        ("-N2 -n16", "python t.py", "--nodes 1:2"),
        ("--gpus=a100:6", "torchrun --nproc-per-node=6 t.py", "--gpus a100:1:6"),
        ("-N2 --gres=gpu:4", "srun torchrun --nproc_per_node=4 t.py", "--gpus 1:8"),
        ("-N2 --gres=gpu:4", "srun torchrun --nproc_per_node=$X t.py", "--gpus 1:8"),
        ("-N1 --gres=gpu:4", "torchrun --nproc_per_node=2 t.py",
         "--nodes 1 --gpus-per-node 4 --workers-per-node 2"),
        ("-N2 --gres=gpu:4 --exclusive", "srun torchrun --nproc_per_node=4 t.py",
         "--nodes 1:2 --gres gpu:4"),
        ("-N2 --gpus-per-node=v100:2", "srun python t.py",
         "--nodes 1:2 --gpus-per-node v100:2 --workers-per-node 1"),
        ("-n8 --gpus-per-task=1", "srun python t.py", "--gpus 1:8"),
        ("--gres=gpu", "python t.py", "--gpus 1"),
        ("--gres=nvme:1", "python t.py", "--nodes 1"),
    ],
)  # fmt: skip
def test_sizes_are_chosen_by_what_a_process_has(directives: str, line: str, sizes: str) -> None:
    options = shlex.join(translation_of(f"#!/bin/sh\n#SBATCH {directives}\n{line}\n").options)
    assert options.removesuffix(" --export ALL") == sizes


def test_the_framework_is_read_in_lines_that_import() -> None:
    text = "import os, torch as t\nfrom bftrainer.elastic import mpi\n# import jax\n"
    assert imports_of(text) >= {"os", "torch", "bftrainer", "bftrainer.elastic.mpi"}
    assert "jax" not in imports_of(text)
    assert runtime_of("from mpi4py import MPI\n", ()) == "mpi"
    assert runtime_of("import horovod.torch\n", ("mpirun",)) == "horovod"
    assert runtime_of(None, ("mpirun",)) == "mpi"
    assert runtime_of(None, ("srun",)) == "torch"


def test_every_flag_of_the_table_that_submit_has_is_handed_on() -> None:
    """A flag that submit lacks is left out; one that it gets later is handed on by itself."""
    judge = OptionJudge(submit)
    present = {flag for option in OPTIONS.values() if (flag := option.flag)}
    taken = {flag for flag in present if judge.fault_of(flag, "1") is not None}
    assert {"--account", "--array", "--begin", "--constraint", "--job-name"} <= taken
    for name, option in OPTIONS.items():
        assert option.flag or option.reason or option.is_size, name


# What any text may be made of, so that something of it is often understood.
WORDS = st.sampled_from(
    ("#SBATCH", "#!/bin/bash", "-N", "2", "--gres=gpu:2", "--array=0-3", "-J",
     "--export=ALL,A=1", "--mail-type=END", "--mail-user=a@b", "--begin=now", "-C", "a&b",
     "--chdir=/x", "srun", "torchrun", "python", "-m", "-c", "-u", "t.py", "--lr", "$X",
     "${Y[@]}", "$(", ")", "`", "'", '"', "\\", "(", "{", "}", "if", "then", "fi", "for",
     "in", "do", "done", "case", "esac", ";;", "&&", "||", "|", "&", ";", ">", "<<E", "E",
     "export", "A=1", "B=(1", "module", "load", "source", "env/bin/activate", "conda",
     "activate", "cd", "..", "apptainer", "exec", "bash", "uv", "run", "accelerate", "launch",
     "mpirun", "-np", "[", "]", "*", "~", "#", "$SLURM_ARRAY_TASK_ID", "-", "--", "=",
     "{index}", "1-", "gpu:0", "--nodes=0", "--gpus=999999")
)  # fmt: skip
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from((" ", " ", "\n", "\n", "")))).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)


@given(st.one_of(TEXTS, TEXTS.map(lambda text: f"#!/bin/bash\n#SBATCH {text}\npython t.py\n"),
                 st.text()))  # fmt: skip
@settings(max_examples=150)
@example("#SBATCH --gres=gpu:1\nuv run -m")
@example("bash -c 'bash -c \"bash -c python\"'")
@example("$(" * 500)
@example('"${' * 500)
def test_any_text_is_translated_or_refused_and_no_directive_is_lost(text: str) -> None:
    translation = translation_of(text)
    assert translation == translation_of(text)
    assert bool(translation.program) is not bool(translation.obstacles)
    if any(obstacle.code == "BFT-1071" for obstacle in translation.obstacles):
        return  # it is no job script of a shell
    told = [(line.line, line.text) for line in translation.lines if line.became or line.reason]
    for directive in read_directives(text.removeprefix("\ufeff").replace("\r\n", "\n")):
        assert (directive.line, f"#SBATCH {directive.text}") in told
    if translation.program:
        words = [*translation.options, *translation.program]
        with submit.make_context("submit", words) as context:
            assert context.params["script"] == translation.program[-1 - len(context.params["args"])]


@pytest.mark.parametrize("name", names())
def test_every_command_of_a_job_script_is_accounted_for(name: str) -> None:
    text = (SCRIPTS / f"{name}.sh").read_text()
    translation = translation_of(text, f"{name}.sh")
    if any(obstacle.code == "BFT-1071" for obstacle in translation.obstacles):
        return
    told = {line.line for line in translation.lines}
    script = read_shell(text)
    for command in script.commands:
        block = script.blocks[command.block - 1] if command.block else None
        assert told & {command.line, block.line if block else command.line}, command
    assert all(line.became or line.reason for line in translation.lines)


def test_there_is_a_job_script_for_each_kind_that_guides_show() -> None:
    assert len(names()) >= 40
    assert {path.suffix for path in Path(SCRIPTS).iterdir()} == {".sh", ".txt"}


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "python t.py $A\n",
        "L=(a b)\n" + 'L=("${L[@]}" "${L[@]}")\n' * 60 + 'python t.py "${L[@]}"\n',
        f"A={'x' * 4000}\npython t.py {'$A' * 2_000}\n",
        f"A={'x' * 4000}\npython t.py {'$A ' * 2_000}\n",
        "python t.py {" + "," * 10_000 + "\n",
        "python t.py " + "$(a) " * 2_000 + "\n",
        "A=1\n" * 2_000 + "python t.py\n",
        "if a; then " * 2_000 + "\npython t.py\n",
    ],
    ids=["doubled", "list", "long", "many", "braces", "outputs", "lines", "depth"],
)
def test_a_text_that_grows_or_is_long_is_followed_as_far_as_it_can_be(text: str) -> None:
    translation = translation_of(f"#!/bin/bash\n{text}")
    assert sum(map(len, translation.program)) < 1_000_000
    assert len(translation.obstacles) <= MOST_OBSTACLES + 1
