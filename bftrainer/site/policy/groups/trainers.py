"""What trainers may take, and when one of them is in trouble."""

from __future__ import annotations

from functools import partial

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Trainers")


class TrainerSettings(SettingsGroup):
    """What trainers may take, and when one of them is in trouble."""

    join_window_s: float = _setting(
        1.0,
        "s",
        "The first warm joiner waits this long for others that are warming up, so that the "
        "trainer pauses once for all.",
        ge=0,
        le=600,
    )
    start_timeout_s: float = _setting(
        120.0,
        "s",
        "A worker that is not warm after this long has failed; the next one of its trainer has "
        "twice as long, up to 32 times this value.",
        ge=1,
        le=86_400,
    )
    max_nodes_per_trainer: int | None = _setting(
        None,
        "nodes",
        "No trainer gets more nodes than this, whatever its n_max; null: no limit.",
        ge=1,
        le=100_000,
    )
    max_trainers: int | None = _setting(
        None,
        "trainers",
        "Submissions beyond this many unfinished trainers are refused; null: no limit.",
        ge=1,
        le=1_000_000,
    )
    max_trainers_per_user: int = _setting(
        200,
        "trainers",
        "The same for each user.",
        ge=1,
        le=1_000_000,
    )
    submissions_per_minute_per_user: int = _setting(
        120,
        "submissions",
        "Submissions of a user beyond this many within a minute are refused.",
        ge=1,
        le=100_000,
    )
    worker_lease_s: float = _setting(
        10.0,
        "s",
        "A worker whose process does not answer its agent for this long (stopped, swapped "
        "out) is killed.",
        ge=0.5,
        le=3_600,
    )
    no_progress_s: float = _setting(
        1_800.0,
        "s",
        "A trainer without a step for this long forms its generation anew, and a worker that "
        "does not take part is killed; 0: never.",
        ge=0,
        le=604_800,
    )
    failure_budget: int = _setting(
        5,
        "failures",
        "A trainer that fails this many times in a row without progress has failed "
        "(docs/design/elastic-runtime.md).",
        ge=1,
        le=10_000,
    )
    quarantine_s: float = _setting(
        10.0,
        "s",
        "A node on which workers fail twice in a row while their trainers do well elsewhere "
        "is offered to no trainer for this long, twice as long each time, at most half an "
        "hour; 0: never (docs/design/elastic-runtime.md).",
        ge=0,
        le=1_800,
    )
    rescale_budget: int | None = _setting(
        None,
        "per hour",
        "A trainer that was given other or more nodes this many times within an hour keeps "
        "those it has; losses, releases and nodes needed for its n_min do not count; null: no "
        "limit.",
        ge=1,
        le=10_000,
    )
