"""Slurm's text to plain data: recorded output of real versions, and garbage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftrainer.model.cluster import JobState, NodeState, Presence
from bftrainer.model.generic_resources import gpus_of
from bftrainer.model.hostlist import MAX_NAMES, ParseError, expand
from slurm_plugins import job_requests, parse, releases, states
from slurm_plugins.launcher import batch_script
from slurm_plugins.parse import switches
from tests.support.examples import examples

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm"
VERSIONS = sorted(path.name for path in RECORDED.iterdir() if path.name[0].isdigit())
R, F = parse.RECORD, parse.FIELD


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / f"{name}.txt").read_text()


def test_at_least_one_version_was_recorded() -> None:
    assert "22.05" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
class TestRecorded:
    def test_idle_nodes(self, version: str) -> None:
        rows = parse.node_rows(recorded(version, "idle.sinfo"))
        assert {(row.node.name, row.partition) for row in rows} == {
            (f"n{number}", partition) for number in range(1, 9) for partition in ("batch", "bf")
        }
        for row in rows:
            assert row.node.state is NodeState.IDLE
            assert (row.node.gpus, row.node.node_type) == (4, "gpu:4")
            assert (row.node.cpus, row.node.memory_mb) == (4, 4000)
            assert row.node.reason == ""
            assert row.node.features == ()

    def test_empty_queue(self, version: str) -> None:
        assert parse.jobs(recorded(version, "idle.squeue")) == ()
        assert parse.pilot_names(recorded(version, "idle.names")) == {}
        assert parse.reservations(recorded(version, "idle.reservations")) == ()
        stats = parse.backfill_stats(recorded(version, "idle.sdiag"))
        assert stats.cycle.ended_s is None

    def test_planned_nodes(self, version: str) -> None:
        rows = parse.node_rows(recorded(version, "busy.sinfo"))
        by_name = {row.node.name: row.node.state for row in rows}
        assert by_name["n1"] is NodeState.ALLOCATED
        assert {by_name[f"n{n}"] for n in (6, 7, 8)} == {NodeState.PLANNED}

    def test_busy_queue(self, version: str) -> None:
        jobs = {job.job_id: job for job in parse.jobs(recorded(version, "busy.squeue"))}
        running = jobs["2"]
        assert running.state is JobState.RUNNING
        assert running.nodes == ("n1", "n2", "n3", "n4")
        assert running.required_nodes == running.nodes
        assert running.n_nodes == 4
        assert running.time_limit_s == 900
        assert running.user == "nobody"
        assert running.start_s is not None
        blocked = jobs["3"]
        assert blocked.state is JobState.PENDING
        assert blocked.planned_nodes == tuple(f"n{n}" for n in range(1, 9))
        assert blocked.nodes == ()
        assert blocked.start_s is not None
        assert blocked.start_s >= running.start_s + 900
        assert blocked.gpus_per_node == 2
        assert blocked.submit_s is not None
        # Of 23.11 without accounting the main scheduler calls every account invalid.
        assert blocked.reason == ("InvalidAccount" if version == "23.11" else "Resources")
        assert jobs["5"].time_limit_s == 86_400
        assert jobs["6"].reason == "JobHeldUser"
        assert jobs["6"].start_s is None
        assert "4_[1-5%2]" in jobs  # an array is one row
        assert jobs["8"].partitions == ("batch", "bf")

    def test_pilots(self, version: str) -> None:
        names = parse.pilot_names(recorded(version, "busy.names"))
        assert {job_id: name[:7] for job_id, name in names.items()} == {
            "9": "p000002",
            "10": "p000003",
        }
        rows = parse.records(recorded(version, "busy.pilots"), 6)
        seen = {
            job_id: states.observation(
                state, node=node, start_s=None, reason=reason, end_s=parse.time_s(end)
            )
            for job_id, state, reason, _, node, end in rows
        }
        assert seen["1"].end_s is not None
        assert seen["1"].presence is Presence.ABSENT
        assert (seen["1"].reason, seen["1"].has_failed) == ("PREEMPTED", False)
        assert (seen["9"].phase, seen["9"].node) == ("running", "n5")
        assert seen["10"].phase == "pending"
        assert len(seen) == 3  # the id nobody knows is not mentioned

    def test_who_answers(self, version: str) -> None:
        assert releases.release_of(recorded(version, "version")) == version
        assert parse.controller_config(recorded(version, "config")).release == version

    def test_settings(self, version: str) -> None:
        config = parse.controller_config(recorded(version, "config"))
        assert (config.bf_interval_s, config.bf_window_s) == (2, 86_400)
        assert config.are_nodes_shared
        assert config.is_memory_counted
        assert config.slurm_uid == 0

    def test_a_pass_of_backfill(self, version: str) -> None:
        cycle = parse.backfill_stats(recorded(version, "busy.sdiag")).cycle
        assert cycle.began_s is not None
        assert cycle.ended_s is not None
        assert 0 <= cycle.ended_s - cycle.began_s < 10
        assert (cycle.depth >= 1, cycle.queue_length >= 1) == (True, True)

    def test_settings_of_partitions(self, version: str) -> None:
        lines = recorded(version, "partitions").splitlines()
        found = {values["PartitionName"]: values for values in map(parse.values_in, lines)}
        assert found["batch"]["PreemptMode"] == "OFF"
        assert (found["bf"]["PreemptMode"], found["bf"]["GraceTime"]) == ("CANCEL", "0")
        assert (found["bf"]["PriorityTier"], found["bf"]["QoS"]) == ("1", "N/A")

    def test_network_switches(self, version: str) -> None:
        found = switches(recorded(version, "topology"))
        assert found == {f"n{n}": "s1" if n <= 4 else "s2" for n in range(1, 9)}

    def test_nodes_that_save_power_are_not_idle(self, version: str) -> None:
        rows = parse.node_rows(recorded(version, "power.sinfo"))
        found = {row.node.name: row.node.state for row in rows}
        assert {found[f"n{n}"] for n in (1, 3, 4)} == {NodeState.POWER_SAVING}
        assert found["n2"] in (NodeState.POWER_SAVING, NodeState.ALLOCATED)  # boots for a job
        assert {found[f"n{n}"] for n in range(5, 9)} == {NodeState.IDLE}

    def test_nodes_in_trouble(self, version: str) -> None:
        rows = parse.node_rows(recorded(version, "trouble.sinfo"))
        nodes = {row.node.name: row.node for row in rows}
        assert nodes["n5"].state is NodeState.DRAINED
        assert nodes["n5"].reason == "bad disk | replace\nsoon"
        assert nodes["n6"].state is NodeState.DRAINED
        assert nodes["n7"].state is NodeState.DOWN
        assert nodes["n7"].reason == "no power"
        assert nodes["n8"].state is NodeState.RESERVED

    def test_reservations(self, version: str) -> None:
        found = {r.name: r for r in parse.reservations(recorded(version, "trouble.reservations"))}
        assert found["soon"].nodes == tuple(f"n{n}" for n in range(1, 9))
        assert found["now"].nodes == ("n8",)
        assert found["now"].is_maintenance
        text = recorded(version, "trouble.reservations").replace("MAINT,", "")
        assert not any(r.is_maintenance for r in parse.reservations(text))
        assert found["now"].end_s - found["now"].start_s == 3600

    @pytest.mark.parametrize(
        "comment",
        [
            "StartTime=x EndTime=y Nodes=n[9-99] Flags=MAINT",
            "beam time\nStartTime=1 EndTime=2\n\nask ops",
        ],
        ids=["settings", "lines"],
    )
    def test_a_comment_on_a_reservation_changes_nothing(self, version: str, comment: str) -> None:
        """Releases from 23.02 on print it last."""
        text = recorded(version, "trouble.reservations")
        commented = "".join(f"{line} Comment={comment}\n" for line in text.splitlines())
        assert parse.reservations(commented) == parse.reservations(text)

    @pytest.mark.parametrize("left_out", ["StartTime=", "Nodes=", " MaxStartDelay=(null)", "\n"])
    def test_less_than_a_reservation_is_refused(self, version: str, left_out: str) -> None:
        with pytest.raises(ParseError):
            parse.reservations(recorded(version, "trouble.reservations").replace(left_out, ""))

    def test_backfill_cycle(self, version: str) -> None:
        stats = parse.backfill_stats(recorded(version, "busy.sdiag"))
        assert not stats.is_in_progress
        assert stats.cycle.ended_s is not None
        assert stats.cycle.depth >= 1
        assert stats.cycle.queue_length >= 1

    def test_configuration(self, version: str) -> None:
        config = parse.controller_config(recorded(version, "config"))
        assert config.release == version
        assert config.bf_interval_s == 2
        assert config.bf_window_s == 86_400
        text = recorded(version, "config").replace("bf_interval=2", "bf_interval=2,bf_window=60")
        assert parse.controller_config(text).bf_window_s == 3600

    def test_a_cut_never_passes_for_less(self, version: str) -> None:
        """Text that ends inside a record is refused, wherever the cut is."""
        for name, reader in (("busy.sinfo", parse.node_rows), ("busy.squeue", parse.jobs)):
            text = recorded(version, name)
            borders = {0} | {i + 1 for i, c in enumerate(text) if c == "\n"}
            for length in range(len(text)):
                if length not in borders:
                    with pytest.raises(ParseError):
                        reader(text[:length])


class TestHostLists:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("", ()),
            ("(null)", ()),
            ("n1", ("n1",)),
            ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
            ("n[008-011]", ("n008", "n009", "n010", "n011")),
            ("a,b[1-2]c,d-e.f", ("a", "b1c", "b2c", "d-e.f")),
            ("r[1-2]n[0-1]", ("r1n0", "r1n1", "r2n0", "r2n1")),
        ],
    )
    def test_is_written_out(self, text: str, names: tuple[str, ...]) -> None:
        assert expand(text) == names

    @pytest.mark.parametrize(
        "text",
        ["n[1-", "n1]", ",", "n1,", "n[]", "n[2-1]", "n[a-b]", "n 1", "n[1-999999999]", "n[[1]]"],
    )
    def test_garbage_is_refused(self, text: str) -> None:
        with pytest.raises(ParseError):
            expand(text)

    def test_a_product_is_bounded(self) -> None:
        with pytest.raises(ParseError):
            expand("a[1-1000]b[1-1000]c[1-1000]d[1-1000]")
        assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


class TestStates:
    @pytest.mark.parametrize(
        ("word", "state"),
        [
            ("idle", NodeState.IDLE),
            ("idle*", NodeState.DOWN),
            ("idle~", NodeState.POWER_SAVING),
            ("idle#", NodeState.POWER_SAVING),
            ("idle$", NodeState.RESERVED),
            ("idle@", NodeState.DRAINED),
            ("idle^", NodeState.DOWN),
            ("idle-", NodeState.PLANNED),
            ("planned", NodeState.PLANNED),
            ("planned*", NodeState.DOWN),
            ("mixed-", NodeState.ALLOCATED),
            ("allocated*", NodeState.DOWN),
            ("ALLOCATED+", NodeState.ALLOCATED),
            ("drained*", NodeState.DOWN),
            ("drained$", NodeState.DRAINED),
            ("down~*", NodeState.DOWN),
            ("invented", NodeState.UNKNOWN),
            ("invented*", NodeState.UNKNOWN),
            ("", NodeState.UNKNOWN),
            ("*", NodeState.UNKNOWN),
        ],
    )
    def test_of_nodes(self, word: str, state: NodeState) -> None:
        assert states.node_state(word) is state
        assert states.is_to_reboot(word) is word.endswith(("@", "^"))

    def test_unknown_words_of_jobs_allow_no_action(self) -> None:
        assert states.job_state("INVENTED") is JobState.OTHER
        seen = states.observation("INVENTED", node=None, start_s=None, reason="")
        assert (seen.presence, seen.has_failed) == (Presence.UNKNOWN, False)

    @pytest.mark.parametrize(
        ("word", "has_failed"),
        [
            ("FAILED", True),
            ("OUT_OF_MEMORY", True),
            ("COMPLETED", False),  # its agent left: told, preempted, at its limit
            ("CANCELLED", False),
            ("PREEMPTED", False),
            ("TIMEOUT", False),
            ("DEADLINE", False),
            ("NODE_FAIL", False),
            ("BOOT_FAIL", False),
            ("REVOKED", False),
            ("RUNNING", False),
            ("COMPLETING", False),
        ],
    )
    def test_of_pilots_that_nobody_ended(self, word: str, has_failed: bool) -> None:
        seen = states.observation(word, node="n1", start_s=None, reason="None")
        assert seen.has_failed is has_failed


class TestFields:
    @pytest.mark.parametrize(
        ("text", "gpus", "kind"),
        [
            ("(null)", 0, "cpu"),
            ("N/A", 0, "cpu"),
            ("gpu:4", 4, "gpu:4"),
            ("gpu:a100:4(S:0-1)", 4, "gpu:a100:4"),
            ("gpu:a100:2(S:0,1),gpu:v100:1(S:1),nvme:3", 3, "gpu:a100:2,gpu:v100:1"),
            ("gres:gpu:2", 2, "gpu:2"),
            ("gres/gpu:h100=8", 8, "gpu:h100:8"),
            ("gres:gpu", 1, "gpu:1"),
            ("gpu:2080ti:4", 4, "gpu:2080ti:4"),
            ("gpu:4090:8(S:0-1)", 8, "gpu:4090:8"),
            ("gres/gpu:1g.10gb:2", 2, "gpu:1g.10gb:2"),
            ("gres/gpu:4090=8", 8, "gpu:4090:8"),
            ("gpu:4090:2(IDX:0-1),gpu:2080ti:1", 3, "gpu:4090:2,gpu:2080ti:1"),
            ("gpu:tesla:2(IDX:0-1)", 2, "gpu:tesla:2"),
            ("gpu:tesla", 1, "gpu:tesla:1"),
            ("gpu:tesla:no_consume:2", 2, "gpu:tesla:2"),
            ("gpu:0", 0, "cpu"),
            ("gpumem:4", 0, "cpu"),
            ("gpu:1K", 1024, "gpu:1024"),
            ("gpu:a100:2K(S:0)", 2048, "gpu:a100:2048"),
            ("gres/gpu=2.5", 3, "gpu:3"),
            ("gres/gpu:a100=1,gres/gpu=1", 1, "gpu:a100:1"),
            ("cpu=4,gres/gpu=3,gres/gpu:a100=2,node=1", 3, "gpu:a100:2,gpu:1"),
            ("gpu:2,gpu:a100:1", 3, "gpu:2,gpu:a100:1"),
        ],
    )
    def test_gpus(self, text: str, gpus: int, kind: str) -> None:
        assert gpus_of(text) == (gpus, kind)

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("5:00", 300),
            ("1:00:00", 3600),
            ("2-03:04:05", 183_845),
            ("3-00", 259_200),
            ("0:30", 30),
            ("UNLIMITED", None),
            ("Partition_Limit", None),
        ],
    )
    def test_limits(self, text: str, seconds: float | None) -> None:
        assert parse.duration_s(text) == seconds

    def test_parts_of_a_job_start_together(self) -> None:
        row = recorded(VERSIONS[0], "busy.squeue").split(R)[1]
        text = "".join(R + row.replace("5", job_id, 1) for job_id in ("50+0", "50+1", "51"))
        assert [job.together for job in parse.jobs(text)] == ["50", "50", ""]

    def test_times(self) -> None:
        assert parse.time_s("1795165335") == 1_795_165_335
        assert parse.time_s("2026-11-20T09:02:15") == 1_795_165_335
        assert parse.time_s("N/A") is None
        assert parse.time_s("0") is None
        with pytest.raises(ParseError):
            parse.time_s("soon")

    def test_cycle_in_progress_is_marked(self) -> None:
        text = recorded(VERSIONS[0], "busy.sdiag").replace(
            "Backfilling stats",
            "Backfilling stats (WARNING: data obtained in the middle of backfilling execution.)",
        )
        assert parse.backfill_stats(text).is_in_progress

    def test_bad_bf_interval_is_the_default(self) -> None:
        text = "SLURM_VERSION = 22.05.8\nSchedulerParameters = bf_interval=x\n"
        assert parse.controller_config(text).bf_interval_s == 30

    def test_the_lowest_switch_of_each_node(self) -> None:
        text = (
            "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
            "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n3\n"
            "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[1-2]\n"
        )
        assert switches(text) == {"n1": "s1", "n2": "s1", "n3": "s2"}
        assert switches("") == {}
        with pytest.raises(ParseError, match="not a switch"):
            switches("SwitchName=s1\n")

    def test_whether_there_are_switches(self) -> None:
        text = recorded(VERSIONS[0], "config")
        assert parse.controller_config(text).has_switches
        for none in ("topology/none", "topology/default", "topology/flat", "topology/block"):
            others = text.replace("topology/tree", none)
            assert not parse.controller_config(others).has_switches

    def test_the_batch_script_quotes_the_agent(self) -> None:
        assert (
            batch_script(("/a b/python", "$(x)'"))
            == "#!/bin/sh\nexec '/a b/python' '$(x)'\"'\"''\n"
        )


# How long an example takes says nothing here, and a busy machine is no failure.
_patient = settings(
    deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow]
)

# Text that gets past the framing more often than pure noise does.
_NEAR = st.lists(
    st.one_of(
        st.sampled_from(
            (
                *(
                    R,
                    F,
                    "\n",
                    "n[1-3]",
                    "n[",
                    "]",
                    "idle*",
                    "PENDING",
                    "1:00",
                    "1-00:00:00",
                    "179516",
                ),
                *("N/A", "(null)", "gpu:4", "gpu:", "gres:gpu:", "4", "-", ",", "9" * 20),
            )
        ),
        st.text(max_size=6),
    ),
    max_size=60,
).map("".join)


def _rows(n_fields: int) -> st.SearchStrategy[str]:
    piece = st.one_of(
        st.sampled_from(["", "1", "n[1-3]", "idle", "1:00", "N/A", "gpu:2", "1795165335"]),
        st.text(max_size=8),
    )
    row = st.lists(piece, min_size=n_fields, max_size=n_fields).map(F.join)
    framed = st.sampled_from([(R, "\n"), ("", R + "\n")])  # of -o, of -O
    return st.tuples(st.lists(row, max_size=4), framed).map(
        lambda made: "".join(made[1][0] + one + made[1][1] for one in made[0])
    )


@_patient
@given(text=st.one_of(_NEAR, _rows(2), _rows(5), _rows(16), _rows(17)))
@pytest.mark.parametrize(
    "reader",
    [
        parse.node_rows,
        parse.jobs,
        job_requests.rows,
        parse.pilot_names,
        parse.reservations,
        parse.backfill_stats,
        parse.controller_config,
        switches,
        gpus_of,
        parse.duration_s,
        parse.time_s,
        expand,
        states.node_state,
        states.job_state,
    ],
    ids=lambda reader: reader.__name__,
)
def test_garbage_raises_nothing_but_parse_error(reader: Callable[[str], object], text: str) -> None:
    try:
        reader(text)
    except ParseError:
        return


@_patient
@given(
    damage=st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 30), st.text(max_size=3)),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("trouble.sinfo", parse.node_rows),
        ("busy.squeue", parse.jobs),
        ("asks.asked", job_requests.rows),
        ("trouble.reservations", parse.reservations),
        ("busy.sdiag", parse.backfill_stats),
        ("config", parse.controller_config),
    ],
    ids=["nodes", "jobs", "asked", "reservations", "backfill", "config"],
)
def test_damaged_real_output_raises_nothing_but_parse_error(
    name: str, reader: Callable[[str], object], damage: list[tuple[int, int, str]]
) -> None:
    text = recorded(VERSIONS[0], name)
    for somewhere, removed, put in damage:
        at = somewhere % (len(text) + 1)
        text = text[:at] + put + text[at + removed :]
    try:
        reader(text)
    except ParseError:
        return


def test_a_partition_without_nodes_has_no_node_called_na() -> None:
    """Seen failing before; sinfo(1) prints ``n/a`` where there is no node."""
    assert expand("n/a") == ()
    row = recorded("26.05", "idle.sinfo").partition(R)[0]
    empty = F.join(("n/a", *row.split(F)[1:]))
    rows = parse.node_rows(f"{empty}{R}\n{row}{R}\n")
    assert [one.node.name for one in rows] == ["n1"]
