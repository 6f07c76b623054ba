"""Whether a login node says that it ends a daemon."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.model.site import OwnSite, Wish
from bftrainer.site.own import login_node, plan
from bftrainer.site.own.login_node import LoginNode, limit_of, look, messages, rule_in, why_as_job

SITE = OwnSite(
    cluster="c1",
    partition="scavenge",
    n_nodes=40,
    preemption="REQUEUE",
    time_limit_s=86_400.0,
    time_limit_words="MaxTime of scavenge",
    batch_options={"pilot_partition": "scavenge", "is_own": True},
)
# In words of our own, after the kinds of rules that guides of sites have.
RULES = (
    "Processes that use more than 30 minutes of CPU time here are killed.",
    "Long-running jobs on the login nodes will be terminated without notice.",
    "Do not run computations on the login nodes!",
    "tmux is not allowed on login nodes.",
    "Automated processes are not permitted on the front-end nodes.",
    "Anything left after an hour is cleaned up: background tasks, too.",
    "Persistent daemons are prohibited on this login host.",
    "IDE sessions on login nodes are automatically ended after 8 hours.",
    "Please don't leave programs on the head node.",
    "Users can\u2019t keep processes on the access nodes.",
    "Long-running\nprocesses are\nkilled.",
)
OTHERS = (
    "",
    "Welcome to the cluster. The login nodes are login1 and login2.",
    "Jobs longer than 24 hours belong to the partition long.",
    "Maintenance ended on Monday. Please resubmit jobs.",
    "Support: help@site.example, open from 9 to 17 hours.",
    "The file system /scratch is cleaned up: files older than 30 days are removed.",
    "You may run compilers and editors on the login nodes.",
    "Your password must not be given to others.",
)


@pytest.mark.parametrize("text", RULES)
def test_rules_of_sites_are_recognised(text: str) -> None:
    whole = f"*****  Welcome  *****\n\n  The site has news.\n\n{text}\n\nHave a nice day.\n"
    assert rule_in(whole) == " ".join(text.split())


@pytest.mark.parametrize("text", OTHERS)
def test_other_news_of_sites_are_none(text: str) -> None:
    assert rule_in(text) == ""


def test_a_long_rule_is_quoted_in_part_and_cannot_steer_the_terminal() -> None:
    quoted = rule_in(f"All processes on login nodes are \x1b[31m killed {'soon ' * 40}.")
    assert len(quoted) <= login_node.MOST_QUOTED
    assert quoted.startswith("All processes on login nodes are [31m killed soon")
    assert quoted.endswith("...")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (LoginNode(), ""),
        (LoginNode(cpu_time_s=1800), "after 30 min of CPU time (ulimit -t)"),
        (LoginNode(cpu_time_s=30 * 86_400.0), ""),
        (LoginNode(cpus=0.25), "share 0.25 of a CPU"),
        (LoginNode(cpus=4), ""),
        (LoginNode(memory_bytes=512 << 20), "share 512 MiB of memory"),
        (LoginNode(memory_bytes=8 << 30), ""),
        (LoginNode(n_processes=40), "40 processes and threads"),
        (LoginNode(n_processes=4000), ""),
        (LoginNode(ends_with_login=True), "when you log out"),
        (LoginNode(texts={"/etc/motd": RULES[0]}), '/etc/motd says "Processes that use'),
        (LoginNode(texts={"/etc/motd": OTHERS[1]}), ""),
    ],
)
def test_each_reason_is_told(node: LoginNode, words: str) -> None:
    reasons = why_as_job(node)
    assert len(reasons) == bool(words)
    assert words in "".join(reasons)


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("cpu.max", "20000 100000\n", 0.2),
        ("cpu.max", "max 100000\n", None),
        ("cpu.max", "20000 0", None),
        ("memory.max", "1073741824\n", float(1 << 30)),
        ("memory.max", "max\n", None),
        ("pids.max", "-1", None),
        ("pids.max", "", None),
    ],
)
def test_limits_of_a_group(name: str, text: str, limit: float | None) -> None:
    assert limit_of(name, text) == limit


def test_what_a_script_prints_counts_and_its_code_does_not() -> None:
    script = """\
# kill long-running processes of the login nodes
if is_login; then
  echo "Processes on login nodes are killed after 2 hours."
  pkill -f jobs  # on login nodes
fi
echo "Processes of the old release are killed in an hour."
"""
    assert messages(script) == "Processes on login nodes are killed after 2 hours."


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_node_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1200, resource.RLIM_INFINITY))
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/user-7.slice/session-1.scope\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/user-7.slice/cpu.max", "25000 100000\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/user-7.slice/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/user-7.slice/pids.max", "100\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/pids.max", "50\n")
    write(tmp_path, "etc/systemd/logind.conf", "[Login]\n#KillUserProcesses=no\n")
    write(tmp_path, "etc/systemd/logind.conf.d/site.conf", "[Login]\nKillUserProcesses=yes\n")
    write(tmp_path, "etc/motd", RULES[1])
    write(tmp_path, "etc/profile.d/rules.sh", f"echo '{RULES[2]}'\nexport A=1\n")
    write(tmp_path, "etc/profile.d/colours.sh", "export B=2\n")
    node = look(tmp_path)
    assert node == LoginNode(
        cpu_time_s=1200.0,
        cpus=0.25,
        n_processes=50,
        ends_with_login=True,
        texts={"/etc/motd": RULES[1], "/etc/profile.d/rules.sh": RULES[2]},
    )
    assert len(why_as_job(node)) == 6


def test_a_node_that_says_nothing_gives_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    (tmp_path / "etc" / "motd").mkdir(parents=True)
    assert look(tmp_path) == LoginNode()
    assert why_as_job(LoginNode()) == ()


class Sites:
    """A site that has looked at this user already."""

    def __init__(self, site: OwnSite) -> None:
        self._site = site

    def examine(self, _: Wish) -> OwnSite:
        return self._site


ENDING = LoginNode(cpu_time_s=1800, texts={"/etc/motd": RULES[1]})


@pytest.mark.parametrize(
    ("node", "site", "options", "is_proposed"),
    [
        (ENDING, SITE, (), True),
        (ENDING, SITE, ("--json",), True),
        (ENDING, SITE, ("--as-job",), False),
        (ENDING, replace(SITE, n_floor=1), (), False),  # in an allocation, on no login node
        (LoginNode(), SITE, (), False),
    ],
)
def test_up_proposes_a_job_in_one_line(
    node: LoginNode,
    site: OwnSite,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_proposed: bool,
) -> None:
    monkeypatch.setattr(plan, "load", lambda _: Sites(site))
    monkeypatch.setattr(login_node, "look", lambda: node)
    done = CliRunner().invoke(cli, ["up", "--dry-run", *options])
    assert done.exit_code == 0
    lines = [line for line in done.stderr.splitlines() if "--as-job" in line]
    proposal = (
        "warning: BFT-2129 This host may end your daemon: a process is ended after 30 min of CPU "
        f'time (ulimit -t); /etc/motd says "{RULES[1]}". In a job it lasts: bftrainer up --as-job'
    )
    assert lines == is_proposed * [proposal]
    assert "BFT-2129" not in done.stdout
