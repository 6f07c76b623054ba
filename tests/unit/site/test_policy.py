"""The policy: every mistake in a file is named, all at once, with its place."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bftrainer.batch.process import run
from bftrainer.cli.main import cli
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.site.policy import (
    LogLevel,
    PolicyErrors,
    SitePolicy,
    load_policy,
    load_policy_file,
    policy_hash,
)
from bftrainer.site.policy.document import MAX_BYTES, MAX_PROBLEMS, read_document
from bftrainer.site.policy.model import SiteObjective
from bftrainer.site.policy.render import (
    NEW,
    json_schema,
    render_markdown,
    render_yaml,
    write,
    yaml_value,
)

ROOT = Path(__file__).parents[3]
EVERY_MISTAKE = """\
t_fwd: 12
t_fwd_s: "120"
P-Jmax: 3
p_jmax: 0
\theartbeat_s: 400
poll_interval_s: 1e309
gap_margin_s: .nan
log_level: loud
objective: [a]
eligible_node_types: []
policy: mlip
lease_s: 2
lease_s: 3
reserve_nodes_per_type: true
failure_budget: 1.5
max_trainers: {a: 1}
pilot_time_limit_s:
idle_confirmations: &x 3
min_gap_s: !!float 3
"""
EVERY_PLACE = [
    (1, 1, "BFT-2110"),
    (2, 10, "BFT-2111"),
    (3, 1, "BFT-2110"),
    (4, 9, "BFT-2112"),
    (5, 1, "BFT-2107"),
    (5, 15, "BFT-2112"),
    (6, 18, "BFT-2112"),
    (7, 15, "BFT-2112"),
    (8, 12, "BFT-2112"),
    (9, 12, "BFT-2112"),
    (10, 22, "BFT-2112"),
    (11, 9, "BFT-2114"),
    (12, 10, "BFT-2113"),
    (13, 1, "BFT-2109"),
    (14, 25, "BFT-2111"),
    (15, 17, "BFT-2111"),
    (16, 15, "BFT-2111"),
    (17, 1, "BFT-2111"),
    (18, 21, "BFT-2108"),
    (19, 12, "BFT-2108"),
]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write_file(text: str | bytes) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(0o644)
        return path

    return write_file


def refused(path: Path) -> PolicyErrors:
    with pytest.raises(PolicyErrors) as caught:
        load_policy(path)
    assert caught.value.exit_code is ExitCode.VALIDATION_FAILED
    return caught.value


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing yet\n", "---\n", "---\n...\n", "{}\n", "~\n", "\ufeff"]
)
def test_a_file_that_sets_nothing_is_the_defaults(
    written: Callable[[str], Path], text: str
) -> None:
    assert load_policy(written(text)) == SitePolicy()


def test_values_of_every_type_are_read(written: Callable[[str], Path]) -> None:
    loaded = load_policy_file(
        written(
            "policy: equal-share\r\nobjective: scaling-efficiency\r\nt_fwd_s: 60\r\n"
            "p_jmax: 0x10\nlog_level: 'debug'\nidle_confirmations: null\n"
            "eligible_node_types:\n  - gpu\n  - '64'\nmax_trainers: 3\nhold_idle_s: 1.5e1\n"
        )
    )
    assert loaded.policy == SitePolicy(
        policy="equal-share",
        objective=SiteObjective.SCALING_EFFICIENCY,
        t_fwd_s=60,
        p_jmax=16,
        log_level=LogLevel.DEBUG,
        eligible_node_types=("gpu", "64"),
        max_trainers=3,
        hold_idle_s=15.0,
    )
    assert loaded.origins["max_trainers"] == f"{loaded.path}:10"
    assert loaded.origins["lease_s"] == "default"
    assert loaded.sha256 == policy_hash(loaded.policy)


def test_all_mistakes_are_reported_at_once_with_their_places(
    written: Callable[[str], Path],
) -> None:
    path = written(EVERY_MISTAKE)
    errors = refused(path)
    assert [(p.line, p.column, p.code) for p in errors.problems] == EVERY_PLACE
    assert errors.code == "BFT-2100"
    for problem in errors.problems:
        assert f"{path}:{problem.line}:{problem.column}: {problem.code}: " in str(errors)
        assert problem.cause.endswith(".")
        assert problem.next_step


def test_a_single_mistake_is_the_error_itself(written: Callable[[str], Path]) -> None:
    path = written("\n  t_fwd_s: 0.5\n")
    errors = refused(path)
    assert errors.code == "BFT-2112"
    assert errors.cause == f"{path}:2:12: t_fwd_s is 0.5, but must be a number from 1 to 86400 s."
    assert errors.next_step == "The default is 120."


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "cause", "next_step"),
    [
        ("t-fwd-s: 1", "BFT-2110", 1, 1, "'t-fwd-s'", "Did you mean t_fwd_s?"),
        ("zzz: 1", "BFT-2110", 1, 1, "'zzz'", "policy show"),
        ("backfill_lead_s: 6", "BFT-2110", 1, 1, "no setting any more", "Delete the line."),
        ("reserve_nodes_per_type: null", "BFT-2111", 1, 1, "must be a whole number", "1."),
        ("policy: equal_share", "BFT-2112", 1, 9, "policy is equal_share", "milp"),
        ("policy: equalshare", "BFT-2114", 1, 9, "'equalshare'", "Did you mean equal-share?"),
        ("policy: other", "BFT-2114", 1, 9, "'other'", "equal-share, fcfs-greedy"),
        ("p_jmax: 1_0", "BFT-2111", 1, 9, "1_0", "The default is 10."),
        ("p_jmax: yes", "BFT-2111", 1, 9, "yes", "The default is 10."),
        ("p_jmax: -1", "BFT-2112", 1, 9, "-1", "The default is 10."),
        ("t_fwd_s: on", "BFT-2111", 1, 10, "on", ""),
        ("t_fwd_s: [1]", "BFT-2111", 1, 10, "[1]", ""),
        ("t_fwd_s: " + "9" * 399, "BFT-2111", 1, 10, "999", ""),
        ("eligible_node_types: [a, 1]", "BFT-2111", 1, 26, "is 1", "null"),
        ("eligible_node_types: a", "BFT-2111", 1, 22, "is a", "null"),
        ("heartbeat_s: 3", "BFT-2113", 1, 14, "twice heartbeat_s (3)", "at least 6"),
        ("agent_timeout_s: .5", "BFT-2113", 1, 18, "less than twice heartbeat_s", "at least 1"),
        ("a: *x", "BFT-2108", 1, 4, "Aliases", "Write the value"),
        ("<<: {p_jmax: 3}", "BFT-2110", 1, 1, "'<<'", ""),
        ("- p_jmax", "BFT-2115", 1, 1, "mapping", "name: value"),
        ("just words", "BFT-2115", 1, 1, "mapping", "name: value"),
        ("p_jmax: 3\n---\np_jmax: 4", "BFT-2115", 2, 1, "second document", "Keep one"),
        ("p_jmax: [3", "BFT-2106", 1, 11, "not YAML", ""),
        ("p_jmax: 3\n lease_s: 4", "BFT-2106", 2, 9, "not YAML", ""),
        ("p_jmax: [[[[[3]]]]]", "BFT-2106", 1, 12, "brackets", ""),
        ("p_jmax:\t3", "BFT-2107", 1, 8, "tab", "spaces"),
        ("p_jmax: 3 # a\tb\n# c\td\n\tlease_s: 60", "BFT-2107", 3, 1, "tab", "spaces"),
        ("p_jmax: \x003", "BFT-2105", 1, 9, "U+0000", "Delete"),
        ("a: 1\nb: \u200b", "BFT-2105", 2, 4, "U+200B", "Delete"),
        (b"a: 1\nb: \xff", "BFT-2105", 2, 4, "0xff", "UTF-8"),
        (b"\xfft", "BFT-2105", 1, 1, "0xff", "UTF-8"),
        ("#" * (MAX_BYTES + 1), "BFT-2104", 0, 0, "larger than 64 KiB", "right file"),
        ("%YAML 1.3\n---\na: 1", "BFT-2106", 1, 1, "neither 1.1 nor 1.2", "Write"),
        (f"%YAML 1.{'9' * 5000}\n---\n", "BFT-2106", 1, 1, "neither 1.1 nor 1.2", "Write"),
        ("a: 1\n" * 3000, "BFT-2104", 1167, 3, "too many entries", "Shorten"),
    ],
)
def test_each_mistake_has_its_code_and_place(
    written: Callable[[str | bytes], Path],
    text: str | bytes,
    code: str,
    line: int,
    column: int,
    cause: str,
    next_step: str,
) -> None:
    first = next(p for p in refused(written(text)).problems if p.code == code)
    assert (first.line, first.column) == (line, column)
    assert cause in first.cause
    assert next_step in first.next_step


def test_a_bomb_of_aliases_is_never_expanded(written: Callable[[str], Path]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 60)
    ]
    errors = refused(written("\n".join(lines)))
    assert len(errors.problems) == MAX_PROBLEMS
    assert {p.code for p in errors.problems} == {"BFT-2108"}
    assert "more than 100 problems" in errors.cause


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "{a: " * 60_000,
        "- " * 120_000,
        "? " * 120_000,
        "a: [" + "1," * 130_000,
    ],
)
def test_deep_or_endless_input_is_given_up_early(text: str) -> None:
    # The parser alone would need minutes for some of these: the test's own time limit judges.
    assert read_document(text).problems[0].code in ("BFT-2106", "BFT-2104")


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    document = read_document(text)
    assert all(problem.line >= 1 and problem.column >= 1 for problem in document.problems)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_file_makes_the_loader_fail(data: bytes) -> None:
    path = Path(f"/tmp/bft-policy-{os.getpid()}.yaml")
    path.write_bytes(data)
    try:
        path.chmod(0o600)
        load_policy(path)
    except PolicyErrors as errors:
        assert errors.problems  # noqa: PT017 - both outcomes are right
    finally:
        path.unlink()


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("p_jmax: 3")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real.yaml")
    assert refused(tmp_path / "link.yaml").code == "BFT-2102"


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").code == "BFT-2102"


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/")])
def test_what_is_not_a_file_is_refused(path: Path) -> None:
    assert refused(path).code == "BFT-2102"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    errors = refused(tmp_path / "nowhere.yaml")
    assert errors.code == "BFT-2101"
    assert str(tmp_path / "nowhere.yaml") in errors.cause


def test_a_file_that_everyone_may_change_is_refused(written: Callable[[str], Path]) -> None:
    path = written("p_jmax: 3")
    path.chmod(0o666)
    errors = refused(path)
    assert errors.code == "BFT-2103"
    assert f"chmod o-w {path}" in errors.next_step


# ---- the model ----------------------------------------------------------------------


def test_a_policy_cannot_be_made_with_wrong_values() -> None:
    for wrong in (
        {"t_fwd_s": 0},
        {"t_fwd_s": float("nan")},
        {"t_fwd_s": "1"},
        {"p_jmax": True},
        {"unknown": 1},
        {"objective": "speed"},
        {"agent_timeout_s": 0.5},
        {"lease_s": 4.0},
    ):
        with pytest.raises(ValidationError):
            SitePolicy.model_validate(wrong)
    with pytest.raises(ValidationError, match="frozen"):
        SitePolicy().p_jmax = 3


def test_the_hash_is_of_the_values_in_force() -> None:
    assert policy_hash(SitePolicy(t_fwd_s=120)) == policy_hash(SitePolicy())
    assert policy_hash(SitePolicy(t_fwd_s=121)) != policy_hash(SitePolicy())
    assert policy_hash(SitePolicy(log_level=LogLevel.DEBUG)) != policy_hash(SitePolicy())


def test_every_setting_is_explained_and_has_bounds() -> None:
    schema = json_schema()
    for name, setting in schema["properties"].items():
        assert setting["description"].endswith("."), name
        options = setting.get("anyOf", [setting])
        for option in options:
            if option.get("type") in ("number", "integer"):
                assert {"minimum", "maximum"} <= option.keys(), name
                assert setting["unit"], name
        if setting["unit"] == "s":
            assert name.endswith("_s"), name
    assert schema["additionalProperties"] is False


# ---- generated files ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("relative", "render"),
    [("docs/reference/policy.md", render_markdown), ("packaging/policy.yaml", render_yaml)],
)
def test_generated_files_are_current(relative: str, render: Callable[[], str]) -> None:
    current = (ROOT / relative).read_text(encoding="utf-8")
    assert current == render(), "run: python -m bftrainer.site.policy.render"


def test_the_default_file_says_what_the_model_says(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "packaging" / "policy.yaml"
    assert load_policy(path) == SitePolicy.model_validate(NEW)
    names = [f"#{name}: " for name in SitePolicy.model_fields]
    lines = path.read_text().splitlines()
    active = [line[1:] if line.startswith(tuple(names)) else line for line in lines]
    path.write_text("\n".join(active))
    loaded = load_policy_file(path)
    assert loaded.policy == SitePolicy.model_validate(NEW)
    assert "default" not in loaded.origins.values()


# ---- the command line ---------------------------------------------------------------


def test_check_accepts_a_good_file(written: Callable[[str], Path]) -> None:
    path = written("p_jmax: 3\n")
    result = CliRunner().invoke(cli, ["policy", "check", str(path)])
    assert (result.exit_code, result.stdout) == (0, f"{path}: ok\n")
    result = CliRunner().invoke(cli, ["policy", "check", str(path), "--json"])
    answer = json.loads(result.stdout)
    assert answer["schema"] == "bftrainer/policy-check/1"
    assert (answer["ok"], answer["problems"]) == (True, [])
    assert answer["policy_hash"] == policy_hash(SitePolicy(p_jmax=3))


def test_check_prints_every_mistake_and_exits_8(written: Callable[[str], Path]) -> None:
    path = written(EVERY_MISTAKE)
    result = CliRunner().invoke(cli, ["policy", "check", str(path)])
    assert result.exit_code == 8
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{path}:{line}:{column}", code] for line, column, code in EVERY_PLACE
    ]
    result = CliRunner().invoke(cli, ["policy", "check", str(path), "--json"])
    assert result.exit_code == 8
    problems = json.loads(result.stdout)["problems"]
    assert [(p["line"], p["column"], p["code"]) for p in problems] == EVERY_PLACE


def test_check_stays_small_with_a_huge_file(written: Callable[[str], Path]) -> None:
    path = written("# " + "x" * 50_000_000)
    script = """
import sys
from pathlib import Path
from bftrainer.site.policy import PolicyErrors, load_policy
try:
    load_policy(Path(sys.argv[1]))
except PolicyErrors as errors:
    print(errors.code)
print(next(l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l))
"""
    done = run([sys.executable, "-c", script, str(path)], timeout_s=60)
    code, _, peak_kb, _ = done.stdout.split()
    assert code == "BFT-2104"
    assert int(peak_kb) < 100_000


def test_show_names_the_origin_of_every_value(written: Callable[[str], Path]) -> None:
    path = written("# mine\np_jmax: 3\n")
    result = CliRunner().invoke(cli, ["policy", "show", str(path)])
    assert result.exit_code == 0
    shown = dict(line.split("#") for line in result.stdout.splitlines())
    assert {key.strip(): origin.strip() for key, origin in shown.items()} == {
        f"{name}: {yaml_value(value)}": f"{path}:2" if name == "p_jmax" else "default"
        for name, value in SitePolicy(p_jmax=3)
    }


def test_what_show_prints_can_be_used_as_a_file(written: Callable[[str], Path]) -> None:
    first = SitePolicy(eligible_node_types=("a b", "64", "x"), max_trainers=4, hold_idle_s=0.1)
    text = "".join(f"{name}: {yaml_value(value)}\n" for name, value in first)
    assert load_policy(written(text)) == first


def test_show_without_a_file_shows_the_defaults_as_json_too() -> None:
    result = CliRunner().invoke(cli, ["policy", "show", "--json"])
    answer = json.loads(result.stdout)
    assert answer["file"] is None
    assert answer["settings"]["t_fwd_s"] == {"value": 120.0, "origin": "default"}
    assert set(answer["settings"]) == set(SitePolicy.model_fields)


def test_show_refuses_a_bad_file_as_check_does(written: Callable[[str], Path]) -> None:
    result = CliRunner().invoke(cli, ["policy", "show", str(written("p_jmax: 0"))])
    assert isinstance(result.exception, BftError)
    assert result.exception.exit_code is ExitCode.VALIDATION_FAILED


def test_the_schema_can_be_printed() -> None:
    result = CliRunner().invoke(cli, ["policy", "schema"])
    assert json.loads(result.stdout) == json_schema()
