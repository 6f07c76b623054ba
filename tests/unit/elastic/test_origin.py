"""What two runs' descriptions say of each other: what is refused, what is told."""

from __future__ import annotations

from typing import Any

import pytest

from bftrainer.elastic.checkpoints.origin import (
    EXPORTED,
    Difference,
    RunOrigin,
    compare,
    environment_of,
)
from bftrainer.elastic.checkpoints.origin_check import in_a_sentence, origin_of, refusal
from bftrainer.ground.protocol import WorkerConfig

HIDDEN = "hf_abcdef0123456789"


def between(old: str, new: str) -> Difference:
    return compare(RunOrigin(args=tuple(old.split())), RunOrigin(args=tuple(new.split())))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--lr 0.1", "--lr 0.01", "--lr 0.01 (it has --lr 0.1)"),
        ("--lr=0.1", "--lr=0.01", "--lr 0.01 (it has --lr 0.1)"),
        ("--lr 0.1", "--lr .1", "--lr .1 (it has --lr 0.1)"),  # texts: only the script knows
        ("--lr -1", "--lr -2", "--lr -2 (it has --lr -1)"),
        ("", "--amp", "--amp (it has no --amp)"),
        ("--amp", "", "no --amp (it has --amp)"),
        ("a.yaml", "b.yaml", "b.yaml (it has a.yaml)"),
        ("", "b.yaml", "b.yaml (it has nothing)"),
        ("a b", "b a", "b a (it has a b)"),
        ("-x 1", "-x 2", "-x 2 (it has -x 1)"),
        ("lr=0.1 n=2", "lr=0.2 n=2", "lr=0.2 (it has lr=0.1)"),
        ("+opt.lr=1", "+opt.lr=2", "+opt.lr=2 (it has +opt.lr=1)"),
        (
            "--set a=1 --set b=2",
            "--set a=1 --set b=3",
            "--set a=1 --set b=3 (it has --set a=1 --set b=2)",
        ),
        ("--lr 1 --lr 2", "--lr 2 --lr 1", "--lr 2 --lr 1 (it has --lr 1 --lr 2)"),  # the last wins
        ("--betas 0.9 0.99", "--betas 0.9 0.95", "--betas 0.9 0.95"),
        ("--epochs 6", "--epochs 3", "--epochs 3 (it has --epochs 6)"),  # would be complete
        ("--epochs 6", "", "no --epochs (it has --epochs 6)"),
        ("", "--epochs 6", "--epochs 6 (it has no --epochs)"),
        ("--epochs 3", "--epochs many", "--epochs many"),
        ("--epochs 3", "--epochs nan", "--epochs nan"),
        ("--epochs 3", "--epochs inf", "--epochs inf"),
        ("--epochs 3", "--epochs 4 5", "--epochs 4 5"),
        ("--warmup-epochs 3", "--warmup-epochs 4", "--warmup-epochs 4"),
        ("--n-steps 5", "--n-steps 6", "--n-steps 6"),  # of a rollout
        ("--samples 5", "--samples 6", "--samples 6"),  # of the data
        ("--out a", "--out b", "--out b (it has --out a)"),
        ("-- x", "-- y", "-- y (it has -- x)"),
    ],
)
def test_other_arguments_are_refused_by_name(old: str, new: str, words: str) -> None:
    difference = between(old, new)
    assert difference.is_other
    assert words in difference.words()
    assert len(difference.refusals) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("--epochs", "--num-epochs", "--num_train_epochs", "--n_epochs", "--max_epochs"),
        *("--nepochs", "--max-steps", "--max_iters", "--total-timesteps", "--trainer.max_epochs"),
        *("--Epochs", "--max_train_steps", "--train-iters"),
    ],
)
def test_a_length_that_has_grown_is_told(name: str) -> None:
    difference = between(f"--lr 1 {name} 3", f"--lr 1 {name}=12")
    assert not difference.refusals
    assert difference.notices == (f"{name} 12 (it has {name} 3)",)
    assert difference.is_other
    assert between("trainer.epochs=3", "trainer.epochs=5").refusals == ()


def test_what_is_refused_comes_with_what_is_told() -> None:
    difference = between("--lr 0.1 --epochs 3", "--lr 0.01 --epochs 6")
    assert difference.refusals == ("--lr 0.01 (it has --lr 0.1)",)
    assert "--epochs 6" in difference.words()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--lr 1 --amp", "--amp --lr 1"),
        ("--lr=1 --x 2", "--x 2 --lr 1"),
        ("a=1 b=2", "b=2 a=1"),
    ],
)
def test_another_order_is_told(old: str, new: str) -> None:
    difference = between(old, new)
    assert difference.notices == ("the same arguments in another order",)
    assert not difference.is_other


def test_the_same_is_silent() -> None:
    for args in ("", "--lr 0.1 data -x -1", "--a=b --a c d=e"):
        assert between(args, args) == Difference()
    assert between("--lr=1", "--lr 1") == Difference()


def test_an_edited_script_is_told_and_another_program_refused() -> None:
    old = RunOrigin(script="a/train.py", digest="1")
    assert compare(old, RunOrigin(script="a/train.py", digest="2")) == Difference(
        notices=("the script was edited",), is_other=True
    )
    assert compare(old, RunOrigin(script="moved/train.py", digest="1")) == Difference()
    assert compare(old, RunOrigin(script="b/train.py", digest="")) == Difference()  # not readable
    other = compare(old, RunOrigin(script="b/train.py", digest="2"))
    assert other.refusals == ("script b/train.py (it has a/train.py)",)


def with_variables(**variables: str) -> RunOrigin:
    pairs = (*variables.items(), (EXPORTED, " ".join(variables)))
    return RunOrigin(environment=environment_of(pairs))


def test_variables_that_were_given_count_and_secrets_do_not() -> None:
    hidden, other = {"HF_TOKEN": HIDDEN}, {"HF_TOKEN": "other"}
    old = with_variables(LR="0.1", **hidden, OMP_NUM_THREADS="1", SEED="1")
    new = with_variables(LR="0.2", **other, OMP_NUM_THREADS="2", DATA="x")
    difference = compare(old, new)
    assert difference.refusals == (
        "variable DATA not set before",
        "variable LR changed",
        "variable SEED not set",
    )
    assert difference.notices == ("variable HF_TOKEN changed", "variable OMP_NUM_THREADS changed")
    assert HIDDEN not in str(old.body()) + str(difference)
    assert compare(old, old) == Difference()
    at_two, at_three = (with_variables(BFT_ARRAY_INDEX=index) for index in "23")
    assert compare(at_two, at_three).refusals


def test_what_export_all_took_along_does_not_count() -> None:
    pairs = (("EVERYTHING", "1"), ("LR", "2"), (EXPORTED, "LR"))
    assert (environment_of(pairs) or {}).keys() == {"LR"}
    assert environment_of((("BFT_RUN_ID", "1"), ("WANDB_RESUME", "allow"))) == {}
    unknown = environment_of((("LR", "2"),))  # submitted by an earlier release
    assert unknown is None
    assert compare(with_variables(LR="1"), RunOrigin(environment=unknown)) == Difference()


def test_versions_are_told_where_both_are_known() -> None:
    old, new = (
        RunOrigin(versions={"torch": "2.5", "numpy": "1"}),
        RunOrigin(versions={"torch": "2.6"}),
    )
    assert compare(old, new) == Difference(notices=("torch 2.6 (it has 2.5)",))


@pytest.mark.parametrize(
    "body",
    [
        *(None, 3, [], {}, {"args": "x"}),
        {"trainer": 1, "script": "", "digest": "", "args": [], "environment": {}, "versions": {}},
        {"trainer": "", "script": "", "digest": "", "args": [1], "environment": {}, "versions": {}},
        {"trainer": "", "script": "", "digest": "", "args": [], "environment": 1, "versions": {}},
        {"trainer": "", "script": "", "digest": "", "args": [], "environment": {}, "versions": []},
    ],
)
def test_a_header_without_a_sound_one_has_none(body: Any) -> None:
    assert RunOrigin.read({"origin": body}) is None


def test_a_header_keeps_it() -> None:
    origin = RunOrigin(
        trainer="t1", script="a.py", digest="d", args=("--lr", "1"), environment={"A": "b"}
    )
    assert RunOrigin.read({"origin": {**origin.body(), "args": list(origin.args)}}) == origin


def test_long_and_odd_values_stay_one_line() -> None:
    difference = between("", " ".join(f"--{i} {'x' * 500}" for i in range(40)))
    assert len(difference.words()) < 1200
    assert difference.words().endswith("and 34 more")
    odd = compare(RunOrigin(), RunOrigin(args=("--x", "\x1b[31m\n\t\x00")))
    assert odd.words().isprintable()
    error = refusal("/d", 60, RunOrigin(trainer="t14"), odd)
    assert (error.code, "step 60 of t14" in error.cause) == ("BFT-1450", True)
    assert (
        in_a_sentence(60, RunOrigin(trainer="t14"), Difference()) == "goes on from step 60 of t14"
    )


def config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(trainer_id="t1", worker_id="w1", node="n1", **changes)


def test_paths_are_the_same_however_they_are_written(tmp_path: Any) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "train.py").write_text("pass\n")
    written = [
        (f"{tmp_path}/{a}/train.py", f"{tmp_path}/{b}")
        for a in ("real", "link")
        for b in ("real", "link/../link/")
    ]
    origins = {str(origin_of(config(script=s, cwd=c))) for s, c in written}
    assert len(origins) == 1
    assert "'train.py'" in origins.pop()
    assert origin_of(config(script=str(tmp_path / "none.py"))).digest == ""
