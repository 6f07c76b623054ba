"""What ``bftrainer doctor`` prints: whose policy it judged, then the findings by what they cost.

A finding takes some lines: the setting, what it costs, the change, and the next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bftrainer.cli.output import print_as_it_is, print_json, print_lines
from bftrainer.model.errors import ExitCode
from bftrainer.model.site import Finding, Measured, Weight

if TYPE_CHECKING:
    from bftrainer.model.views import StatusView

TITLES: Final[Mapping[Weight, str]] = {
    Weight.STOP: "What stops you: no node is used",
    Weight.HARM: "What harms ordinary jobs",
    Weight.UNKNOWN: "What was not found out: it may harm ordinary jobs",
    Weight.LOSS: "What could be better: it costs you nodes",
}
_CHANGE, _NEXT = "change: ", "next:   "


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The policy that was judged, and where it is from."""

    files: tuple[Path, ...]  # (): the defaults
    why: str  # these, or the defaults
    no_daemon: str  # why no daemon was asked; "": one was

    def sentence(self) -> str:
        """Return the first line of the report."""
        files = ", ".join(map(str, self.files)) or "the defaults"
        daemon = "The running daemon was asked, and what it measured counts."
        if self.no_daemon:
            daemon = f"No daemon was asked, so nothing is measured. {self.no_daemon}"
        return f"Policy judged: {files}, {self.why}. {daemon}"


def choose_policy(
    named: Path | None, status: StatusView | None, *, no_daemon: str, is_readable: Sequence[bool]
) -> Judged:
    """Return which policy is judged: the one of ``--policy``, else the running daemon's.

    Args:
        named: by ``--policy``.
        status: of the running daemon; None: none was asked.
        no_daemon: why none was asked.
        is_readable: whether each policy file of the daemon can be read here.
    """
    if named is not None:
        return Judged(files=(named,), why="which --policy names", no_daemon=no_daemon)
    if status is None:
        return Judged(files=(), why="as --policy names no file", no_daemon=no_daemon)
    files = tuple(map(Path, status.policy_files))
    if not files:
        why = "as the running daemon has no policy file"
    elif not all(is_readable):
        closed = files[list(is_readable).index(False)]
        why = f"as the running daemon's {closed} cannot be read here (name a copy with --policy)"
        files = ()
    else:
        why = "the policy of the running daemon"
    return Judged(files=files, why=why, no_daemon=no_daemon)


def status_of(findings: Sequence[Finding]) -> ExitCode:
    """Return the exit status: 8 where ordinary jobs may be harmed, or no node is used."""
    if all(finding.weight is Weight.LOSS for finding in findings):
        return ExitCode.OK
    return ExitCode.VALIDATION_FAILED


def print_findings(
    judged: Judged, findings: Sequence[Finding], measured: Measured, *, as_json: bool
) -> None:
    """Print the report."""
    from bftrainer.decide import short_gaps  # noqa: PLC0415 - -h needs none of it

    if as_json:
        print_json(_document(judged, findings, measured))
        return
    print_lines(judged.sentence())
    for weight, title in TITLES.items():
        group = [finding for finding in findings if finding.weight is weight]
        if group:
            print_lines("", f"{title} ({len(group)})")
        for finding in group:
            _print_finding(finding)
    if not findings:
        print_lines("Nothing to change.")
    if measured.short_gaps is not None:
        print_lines("", *short_gaps.sentences(measured.short_gaps, measured))


def _print_finding(finding: Finding) -> None:
    print_lines(f"  {finding.code} {finding.setting}", indent=4)
    print_lines(f"    {finding.cost}", indent=4)
    change, *script = finding.remedy.splitlines()
    print_lines(f"    {_CHANGE}{change}", indent=4 + len(_CHANGE))
    # To be copied, so these are not wrapped.
    print_as_it_is(*(f"    {' ' * len(_CHANGE)}{line.strip()}" for line in script))
    print_as_it_is(f"    {_NEXT}{next_command(finding)}")


def next_command(finding: Finding) -> str:
    """Return the one command that goes on from a finding."""
    return finding.command or f"bftrainer help {finding.code}"


def _document(judged: Judged, findings: Sequence[Finding], measured: Measured) -> dict[str, Any]:
    gaps = None
    if measured.short_gaps is not None:
        gaps = asdict(measured.short_gaps)
    return {
        "schema": "bftrainer/doctor/1",
        "policy_files": list(map(str, judged.files)),
        "policy_is": judged.why,
        "no_daemon": judged.no_daemon or None,
        "is_safe": not any(item.weight in {Weight.HARM, Weight.UNKNOWN} for item in findings),
        "findings": [{**asdict(item), "command": next_command(item)} for item in findings],
        "short_gaps": gaps,
    }
