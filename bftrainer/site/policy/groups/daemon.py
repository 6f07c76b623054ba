"""How the daemon runs: polls, requests, journal, log."""

from __future__ import annotations

import enum
from functools import partial

from pydantic import JsonValue

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Daemon")


class LogLevel(enum.StrEnum):
    """Levels of the daemon's log, most talkative first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DaemonSettings(SettingsGroup):
    """How the daemon runs: polls, requests, journal, log."""

    poll_interval_s: float = _setting(
        1.0,
        "s",
        "Interval of polls.",
        ge=0.05,
        le=3_600,
    )
    poll_interval_with_hook_s: float = _setting(
        30.0,
        "s",
        "Interval of polls with the hook; each burst of its lines is followed by one poll.",
        ge=0.05,
        le=3_600,
    )
    requests_per_minute: int = _setting(
        130,
        "requests",
        "Requests to the controller per minute, of all polls together; submitting and "
        "cancelling pilots is never delayed, the polls after it are "
        "(docs/howto/slurm-site.md).",
        ge=1,
        le=100_000,
    )
    requests_per_minute_with_hook: int = _setting(
        12,
        "requests",
        "With the hook: requests of the polls that nothing called for.",
        ge=1,
        le=100_000,
    )
    batch_options: dict[str, JsonValue] = _setting(
        {},
        "",
        "Options of the batch system, by name (docs/howto/slurm-site.md, docs/howto/lsf-site.md); "
        "--batch-option on the command line comes first.",
        restart="The connection to the batch system is made with them.",
    )
    journal_days: int = _setting(
        30,
        "days",
        "The journal keeps entries, and trainers that have ended, for at least this long; "
        "'report harm' and replays reach no further back.",
        ge=2,
        le=36_500,
    )
    log_level: LogLevel = _setting(
        LogLevel.INFO,
        "",
        "How much the daemon logs.",
        strict=False,
    )
