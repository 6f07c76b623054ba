"""``bftrainer doctor`` and ``site init``: inspect a site for its administrator.

The doctor finds settings that would harm ordinary jobs or trainers; it works without a daemon, a
running one adds its measurements. ``site init`` prints what is to be installed; with ``--write`` it
writes into one directory, and over nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import connect
from bftrainer.cli.daemon import parse_options
from bftrainer.cli.options import JSON, PATH, SOCKET, VerbGroup, option, shown_example, verb
from bftrainer.cli.output import print_as_it_is, print_json, print_lines, print_table
from bftrainer.ground.regular_file import check_directory, why
from bftrainer.model.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.batch.batch_system import BatchSystem
    from bftrainer.cli.findings import Judged
    from bftrainer.model.site import Finding, Measured, SiteFile
    from bftrainer.model.views import StatusView
    from bftrainer.site.policy.model import SitePolicy


# Of what the running daemon says something under these codes, and what to do then.
_SETTINGS = {"BFT-1317": "clock", "BFT-1330": "agents", "BFT-1331": "agents", "BFT-2230": "disk"}
_REMEDIES = {
    "BFT-1317": "set it right; if it is right now, remove 'clock' in the state directory and"
    " restart it",
    "BFT-1330": "mend the network of the daemon's host; trainers are taken over as they are then",
    "BFT-1331": "see the output of these jobs and the log of the node's batch daemon; requests go"
    " on by themselves, ever more rarely, until an agent connects",
    "BFT-2230": "make room or enlarge it; 'bftrainer journal compact --days N' shrinks the journal"
    " of a stopped daemon, journal_days in the policy that of a running one",
}
DEFAULT_DIRECTORY = Path("bftrainer-site")
_READABLE = 0o755
_INSTALLED_PROGRAM, _INSTALLED_FILE = 0o755, 0o644


@verb(
    option("--batch-system NAME", "slurm, lsf, local, or that of a plug-in.  [default: the running "
           "daemon's, else slurm]"),
    option("--policy PATH", "Policy YAML.  [default: the running daemon's]", PATH,
           name="policy_file"),
    option("--batch-option KEY=VALUE", "Option of the batch system; 'bftrainer help slurm-site' "
           "lists them.", name="pairs", multiple=True),
    option("--firewall", "Print the rules that this site's firewalls need, and no more.",
           click.Choice(["nftables", "firewalld"])),
    option("--container IMAGE", "Start this image here, import torch in it, and no more."),
    option("--try-release", "Try the batch system's release with one pilot on an idle node."),
    JSON, SOCKET,
    example="bftrainer doctor --policy /etc/bftrainer/policy.yaml",
)  # fmt: skip
@click.pass_context
def doctor(
    context: click.Context,
    batch_system: str | None,
    policy_file: Path | None,
    pairs: tuple[str, ...],
    firewall: str | None,
    container: str | None,
    socket_name: str | None,
    *,
    try_release: bool,
    as_json: bool,
) -> None:
    """Name what stops you, what harms ordinary jobs, and what could be better.

    Each finding has the setting, what it costs, the change, and the next command. A running daemon
    is asked for its policy and for what it has measured. With --policy
    /etc/bftrainer/policy.yaml, the service's, the installed files are also compared with those of
    "site init".

    Exit status: 0, nothing stops you or harms ordinary jobs; 8, something does, or it could not
    be found out; 2, the options are wrong.
    """
    from bftrainer.cli.findings import print_findings, status_of  # noqa: PLC0415 - loads the model
    from bftrainer.decide import horizon, short_gaps  # noqa: PLC0415 - -h needs none of it
    from bftrainer.model.site import NOTHING  # noqa: PLC0415

    if container is not None:
        _print_image(container, as_json=as_json)
        return
    status, judged = ask_policy(socket_name, batch_system, policy_file)
    if policy_file is None and not pairs and status is not None:
        pairs = status.batch_pairs
    if not batch_system:
        batch_system = status.batch_system if status else "slurm"
    with opened(batch_system, judged.files, pairs) as (system, policy):
        if firewall is not None:
            print_lines(judged.sentence(), err=True)
            print_as_it_is(*_rules(firewall, system, policy).splitlines())
            return
        if try_release:
            context.exit(_try_release(system, as_json=as_json))
        measurements, late_agents = NOTHING, tuple[str, ...]()
        if status is not None:
            measurements, late_agents = status.measured, status.late_agents
        if policy_file is not None:
            measurements = replace(measurements, max_nodes=policy.max_nodes)
        findings = system.findings(measurements)
        main_policy_file = next(iter(judged.files), None)
        findings += _service(system, main_policy_file)
        findings += _networks(system, policy, main_policy_file, measurements, late_agents)
        if status is not None:
            findings += _failures(status)
        findings += _lent(system, policy)
        t_fwd_s = policy.t_fwd_s
        if policy_file is None and measurements.t_fwd_s is not None:
            t_fwd_s = measurements.t_fwd_s  # the one in force
        findings += horizon.findings(measurements.rescale_s, t_fwd_s, whose="measured")
        findings += short_gaps.findings(measurements)
    print_findings(judged, findings, measurements, as_json=as_json)
    context.exit(status_of(findings))


def _print_image(image: str, *, as_json: bool) -> None:
    """Print what an image has here; raise BFT-1080 to BFT-1084 if it cannot be used."""
    from bftrainer.cli.container import report_of  # noqa: PLC0415 - -h needs none of it
    from bftrainer.cli.option_values import parse_image  # noqa: PLC0415

    lines = report_of(parse_image(image))
    if as_json:
        print_json({"schema": "bftrainer/doctor-container/1", "checks": list(lines)})
        return
    print_lines(*lines)


def ask_policy(
    socket_name: str | None, batch_system: str | None, policy_file: Path | None
) -> tuple[StatusView | None, Judged]:
    """Return what the running daemon says, None if none was asked, and which policy is judged."""
    from bftrainer.cli.findings import choose_policy  # noqa: PLC0415 - loads the model

    status, no_daemon = None, ""
    try:
        status = connect(socket_name).status()
    except BftError as error:
        no_daemon = error.cause
    if status is not None and batch_system not in {None, status.batch_system}:
        no_daemon = f"The one that runs here uses {status.batch_system}."
        status = None
    files: tuple[str, ...] = ()
    if status is not None:
        files = status.policy_files
    is_readable = [os.access(file, os.R_OK) for file in files]
    return status, choose_policy(policy_file, status, no_daemon=no_daemon, is_readable=is_readable)


def _lent(system: BatchSystem, policy: SitePolicy) -> tuple[Finding, ...]:
    """Return what the policy leaves idle of shared nodes, and where it lends no GPUs."""
    from bftrainer.batch import lending_findings  # noqa: PLC0415 - -h needs none of it
    from bftrainer.model.parts import Lend  # noqa: PLC0415

    if not system.lends_parts and policy.lend is Lend.NODES:
        return ()
    nodes = system.snapshot(wants_cycle=False).nodes or ()
    return lending_findings.findings(nodes, policy.lend, lends_parts=system.lends_parts)


def _try_release(system: BatchSystem, *, as_json: bool) -> ExitCode:
    """Print the steps of the trial, and the line that accepts the release if all passed."""
    trial = system.try_release()
    if as_json:
        print_json({"is_passed": trial.is_passed, **asdict(trial)})
    else:
        rows = list[tuple[str, str, str]]()
        for step in trial.steps:
            rows.append(("passed" if step.is_passed else "FAILED", step.what, step.seen))
        print_table(("result", "step", "seen"), rows)
        if not trial.is_passed:
            print_lines(f"Release {trial.release} did not pass.")
        elif trial.accept:
            print_lines(f"To use it, in the policy: {trial.accept}")
        else:
            print_lines("It is known.")
    return ExitCode.OK if trial.is_passed else ExitCode.VALIDATION_FAILED


@contextlib.contextmanager
def opened(
    batch_system: str, policy_files: Sequence[Path], pairs: tuple[str, ...]
) -> Iterator[tuple[BatchSystem, SitePolicy]]:
    """Yield a batch system as the policy sets it up, and the policy."""
    from bftrainer.batch.batch_system import load_batch_system  # noqa: PLC0415 - loads adapters
    from bftrainer.site.policy.load import load_policy_files  # noqa: PLC0415 - pydantic is slow

    first = parse_options(pairs)
    policy = load_policy_files(policy_files, batch_system=batch_system, batch_options=first).policy
    with contextlib.closing(
        load_batch_system(batch_system, {**policy.batch_options, **first})
    ) as system:
        if policy.pilots_dir:
            system.pilots_are_in(Path(policy.pilots_dir))
        yield system, policy


def _service(system: BatchSystem, policy_file: Path | None) -> tuple[Finding, ...]:
    """Check what systemd is told of the daemon, if the policy is that of the site's service."""
    from bftrainer.batch import service_files  # noqa: PLC0415

    is_service = policy_file and str(policy_file.absolute()) == service_files.POLICY_FILE
    if is_service:
        # None are needed; or settings cannot be read, which is a finding already.
        with contextlib.suppress(BftError):
            return service_files.findings(system.site_files())
    return ()


def _networks(
    system: BatchSystem,
    policy: SitePolicy,
    policy_file: Path | None,
    measurements: Measured,
    late_agents: tuple[str, ...],
) -> tuple[Finding, ...]:
    """Check the way between this host and the nodes, and what they see of its files."""
    from bftrainer.batch.service_files import STATE_DIR  # noqa: PLC0415
    from bftrainer.fleet.wire import listener  # noqa: PLC0415

    pilots_dir = None
    if policy_file is not None and not policy.is_for_all:
        state_dir = Path(STATE_DIR)
        if policy.batch_options.get("is_own"):
            state_dir = policy_file.absolute().parent
        pilots_dir = Path(policy.pilots_dir or state_dir / "pilots")
    return tuple(
        listener.findings(
            listener.look_around(system.pilot_hosts()),
            control_network=policy.control_network or "",
            pilots_dir=pilots_dir,
            measured=measurements,
            late=late_agents,
        )
    )


def _failures(status: StatusView) -> tuple[Finding, ...]:
    """Return what the daemon says of its clock, and of agents that it does not hear."""
    from bftrainer.model.site import Finding, Weight  # noqa: PLC0415

    findings = list[Finding]()
    for failure in status.failures:
        code, _, cost = failure.partition(": ")
        if code in _SETTINGS:
            finding = Finding(
                code=code,
                weight=Weight.LOSS,
                setting=_SETTINGS[code],
                cost=cost,
                remedy=_REMEDIES[code],
            )
            findings.append(finding)
    return tuple(findings)


def _rules(kind: str, system: BatchSystem, policy: SitePolicy) -> str:
    from bftrainer.batch import firewall  # noqa: PLC0415
    from bftrainer.fleet.wire import listener  # noqa: PLC0415

    return firewall.rules(
        kind,
        listener.addresses_of(system.pilot_hosts()),
        ports=policy.ports or "",
        chosen=listener.chosen_ports(),
        control=policy.control_network or "",
        training=policy.training_network or "",
    )


@click.group(cls=VerbGroup, epilog=shown_example("bftrainer site init"))
def site() -> None:
    """Prepare a site for bftrainer.

    A site is a cluster whose administrator runs the daemon for all users.
    """


@verb(
    option("--batch-system", "slurm, lsf, or that of a plug-in.", default="slurm"),
    option("--policy", "Policy YAML whose batch_options count.", PATH, name="policy_file"),
    option("--batch-option KEY=VALUE", "Option of the batch system; it is also written into the "
           "first policy.", name="pairs", multiple=True),
    option("--directory", "Where --write writes.", click.Path(path_type=Path, file_okay=False),
           DEFAULT_DIRECTORY),
    option("--write", "Write the files; print no text.", name="is_written"),
    JSON, group=site,
    example="bftrainer site init --write --directory site",
)  # fmt: skip
def init(
    batch_system: str,
    policy_file: Path | None,
    pairs: tuple[str, ...],
    directory: Path,
    *,
    is_written: bool,
    as_json: bool,
) -> None:
    """Print queue or partition, settings, service, a first policy and a checklist for this site.

    The batch system is only asked; nothing of it is changed.
    """
    policy_files = () if policy_file is None else (policy_file,)
    with opened(batch_system, policy_files, pairs) as (system, _):
        files = system.site_files()
    paths = write(directory, files) if is_written else ()
    if as_json:
        print_json(
            {
                "schema": "bftrainer/site/1",
                "batch_system": batch_system,
                "files": list(map(_file_document, files)),
                "written": list(map(str, paths)),
            }
        )
        return
    for file in files:
        if is_written:
            print_lines(f"{directory / file.name}: {file.about}")
        else:
            print_lines(f"# ---- {file.name}: {file.about}")
            click.echo(file.text)  # to be installed as it is


def _file_document(file: SiteFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "about": file.about,
        "path": file.path,
        "is_service": bool(file.without),
        "text": file.text,
    }


def write(directory: Path, files: Sequence[SiteFile]) -> tuple[Path, ...]:
    """Write the files, those that are there already excepted; return all paths.

    Whatever the umask, all may read them and nobody else may change them: root installs them.

    Raises:
        UsageError: BFT-1249, another file has one of the names, and nothing was written; or the
            directory cannot be written, or others can put other files there.
    """
    try:
        paths = [directory / file.name for file in files if _is_other(directory, file)]
        if paths:
            raise UsageError(
                "BFT-1249",
                f"{', '.join(map(str, paths))}: there, but with another content or owner. "
                "Nothing was written.",
                "Move it away, or name another --directory.",
            )
        _make(directory)
        for file in files:
            path = directory / file.name
            if not path.exists():
                with path.open("x", encoding="utf-8") as opened:
                    opened.write(file.text)
            path.chmod(_INSTALLED_PROGRAM if file.is_executable else _INSTALLED_FILE)
    except OSError as problem:
        raise UsageError(
            "BFT-1249",
            f"The files cannot be written into {directory}: {why(problem)}.",
            "Name another --directory.",
        ) from problem
    return tuple(directory / file.name for file in files)


def _make(directory: Path) -> None:
    """Make a directory, and what is missing above it, that nobody else can write to.

    Raises:
        OSError: it cannot be made, or somebody else can write to one that is there.
    """
    places = (directory, *directory.parents)
    missing = [place for place in places if not place.exists()]
    if not missing:
        check_directory(directory)
    existing = places[len(missing) :]
    if existing:
        mode = existing[0].stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, "everybody can write to it", str(existing[0]))
    for place in reversed(missing):
        place.mkdir()
        place.chmod(_READABLE)


def _is_other(directory: Path, file: SiteFile) -> bool:
    """Return whether something else has the file's name, such as a link or another user's file."""
    path = directory / file.name
    if path.is_symlink():
        return True
    if not path.exists():
        return False
    is_ours = path.stat().st_uid in (os.geteuid(), 0)
    return not is_ours or path.read_bytes() != file.text.encode()
