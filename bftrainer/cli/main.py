"""``bftrainer VERB``: the table of verbs, and the printing of errors.

A verb's module is imported when the verb is used, so that ``--help`` and completion stay fast.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from bftrainer import __version__
from bftrainer.cli import streams
from bftrainer.cli.output import print_lines
from bftrainer.cli.verb_plugins import added_verbs, command_at, in_order
from bftrainer.ground.regular_file import why
from bftrainer.model.errors import BftError, ExitCode, NoDaemonError, exit_code_of

# who uses them -> verb -> (module:command, text for --help); other rooms add theirs (verb_plugins)
GROUPS = {
    "Begin here": {
        "up": ("bftrainer.cli.up:up", "Start your own daemon, without an administrator."),
        "down": ("bftrainer.cli.up:down", "End your own daemon and release its nodes."),
        "help": ("bftrainer.cli.help:explain_word", "Explain a verb or an error, or open a page."),
    },
    "Your trainers": {
        "submit": ("bftrainer.cli.submit:submit", "Hand a training to the daemon."),
        "profile": ("bftrainer.cli.profile:profile", "Predict how a script scales with its nodes."),
        "cancel": ("bftrainer.cli.change:cancel", "End trainers."),
        "hold": ("bftrainer.cli.change:hold", "Keep trainers from having nodes."),
        "release": ("bftrainer.cli.change:release", "Let trainers that are held go on."),
        "update": (
            "bftrainer.cli.change:update",
            "Change numbers of nodes, weight or name of trainers.",
        ),
        "requeue": ("bftrainer.cli.change:requeue", "Start trainers again from their checkpoints."),
    },
    "See what happens": {
        "status": (
            "bftrainer.cli.status:status",
            "Show the daemon and its trainers, or one trainer.",
        ),
        "nodes": ("bftrainer.cli.status:nodes", "Show every node and what it is used for."),
        "explain": (
            "bftrainer.cli.status:explain",
            "Say why a trainer has its nodes, or has none.",
        ),
        "logs": ("bftrainer.cli.logs:logs", "Print what a trainer's workers wrote."),
        "top": ("bftrainer.cli.top:top", "Watch nodes and trainers on one screen."),
        "web": ("bftrainer.cli.web:web", "Serve a page of nodes and trainers to your browser."),
        "account": ("bftrainer.cli.report:account", "Say who used how many node-hours."),
    },
    "Administrators": {
        "site": ("bftrainer.cli.site:site", "Say what an administrator is to install here."),
        "doctor": (
            "bftrainer.cli.site:doctor",
            "Name settings that stop you or hurt ordinary jobs.",
        ),
        "policy": (
            "bftrainer.cli.policy:policy",
            "List policies; check and show the site's policy file.",
        ),
        "daemon": ("bftrainer.cli.daemon:daemon", "Run the daemon, as a site's service does."),
        "drain": ("bftrainer.cli.change:drain", "Give all nodes back and take none."),
        "resume": ("bftrainer.cli.change:resume", "Take nodes again."),
        "report": ("bftrainer.cli.report:report", "Sum up how long ordinary jobs waited for us."),
        "metrics": ("bftrainer.cli.status:metrics", "Print the daemon's metrics for Prometheus."),
        "journal": ("bftrainer.cli.journal:journal", "Check a journal, or remove what is old."),
        "agent": (
            "bftrainer.cli.agent:agent",
            "Hold a node; the daemon starts it, nobody types it.",
        ),
    },
    "Before there is a site, and research": {
        "replay": (
            "bftrainer.cli.journal:replay",
            "Take the decisions of a daemon's journal again.",
        ),
    },
}
HELP = {  # what to type -> what for
    "bftrainer try SCRIPT": "begin with your own script, on this machine",
    "bftrainer VERB -h": "the options of a verb, with an example",
    "bftrainer help CODE": "what an error means, as BFT-1310",
    "bftrainer help PAGE": "a page, as tutorial; help --pages lists them",
}
INTERRUPTED = 128 + 2


Verbs = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one at a time.

    A word that is none of its own is looked for among the verbs that are added to it; if it is none
    of those, it leads to the one that it may mean.
    """

    def __init__(
        self,
        *args: Any,
        groups: Mapping[str, Verbs],
        help_lines: Mapping[str, str] = MappingProxyType({}),
        path: str = "",
        **more: Any,
    ) -> None:
        """Take the verbs by the titles of their groups, and what to type for help.

        ``path``: of this group in the tables of verbs that are added.
        """
        super().__init__(*args, **more)
        self._groups, self._help, self._path = groups, help_lines, path
        self._verbs: dict[str, tuple[str, str]] = {}
        for verbs in groups.values():
            self._verbs.update(verbs)

    def all_verbs(self) -> Verbs:
        """Return the verbs, those that are added among them, in the order of the help."""
        verbs: dict[str, tuple[str, str]] = {}
        for section in self._sections().values():
            verbs.update(section)
        return verbs

    def _sections(self) -> dict[str, Verbs]:
        """Return all verbs by the titles under which they are listed."""
        added = added_verbs(self._path)
        added = {name: row for name, row in added.items() if name not in self._verbs}
        sections: dict[str, Verbs] = {}
        for title in dict.fromkeys((*self._groups, *(row.title for row in added.values()))):
            verbs = dict(self._groups.get(title, {}))
            rows = {name: row for name, row in added.items() if row.title == title}
            order = in_order(verbs, rows)
            for name, row in rows.items():
                verbs[name] = (row.place, row.text)
            sections[title] = {name: verbs[name] for name in order}
        return sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the verbs in the order of the table."""
        return list(self.all_verbs())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the verb's module and return its command."""
        row = self._verbs.get(cmd_name) or added_verbs(self._path).get(cmd_name)
        if row is None:
            return None
        return command_at(row[0])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the first word names, or say which it may mean."""
        word = str(args[0])
        if word in self._verbs or ctx.resilient_parsing or word.startswith("-"):
            return super().resolve_command(ctx, args)
        verbs = self.all_verbs()
        if word in verbs:
            return super().resolve_command(ctx, args)
        from bftrainer.cli.mistakes import unknown_verb  # noqa: PLC0415 - for mistakes only

        raise unknown_verb(self, ctx, word, args[1:], verbs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; that no daemon answers is told while it is known which verb it was."""
        try:
            return super().invoke(ctx)
        except click.UsageError as problem:
            if problem.ctx is None and ctx.invoked_subcommand:  # of click's parser
                command = self.get_command(ctx, ctx.invoked_subcommand) or self
                problem.ctx = click.Context(command, ctx, ctx.invoked_subcommand)
            raise
        except NoDaemonError as error:
            from bftrainer.cli.no_daemon import led  # noqa: PLC0415 - asks the site

            verb = ctx.invoked_subcommand or ""
            raise led(error, verb) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing them."""
        for title, verbs in self._sections().items():
            with formatter.section(title):
                formatter.write_dl([(verb, text) for verb, (_, text) in verbs.items()])
        if self._help:
            with formatter.section("Help"):
                formatter.write_dl(list(self._help.items()))


class _Root(LazyGroup):
    """All verbs; before them may stand a host on which they run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Run the verb over ssh and exit, if a host is named; our options are not for its words."""
        if args and args[0].startswith("--host") and not ctx.resilient_parsing:
            from bftrainer.cli.other_host import login_in, run_there  # noqa: PLC0415 - seldom

            login, words = login_in(args)
            if login is not None:
                ctx.exit(run_there(login, words))
        return super().parse_args(ctx, args)


@click.command(
    cls=_Root,
    groups=GROUPS,
    help_lines=HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed (a trainer, a script, a disk, or a defect), 2 usage, "
    "3 refused by policy, 4 not found, 5 not permitted, 6 daemon or batch system unreachable, "
    "7 not done in time, 8 validation failed, 75 already running, 128+N ended by signal N.",
)
@click.option(
    "--host",
    metavar="LOGIN",
    expose_value=False,
    help="Run the verb on this host over your own ssh, which logs in once an hour at most. Scripts "
    "and other files are those over there.",
)
@click.option(
    "--host-program",
    metavar="PATH",
    expose_value=False,
    help="bftrainer on that host.  [default: the one in its PATH]",
)
@click.version_option(__version__, prog_name="bftrainer", message="%(prog)s %(version)s")
def cli() -> None:
    """Train neural networks on the idle nodes of a cluster.

    A trainer is a training that may change its number of nodes while it runs. A daemon gives
    trainers the nodes that ordinary jobs leave idle, and takes them back when a job needs them. A
    pilot is the batch job that holds such a node.
    """


def all_verbs() -> Verbs:
    """Return all verbs, those of other rooms and packages among them, in the order of the help."""
    return cli.all_verbs()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code; only bugs cause a traceback."""
    with streams.prepared():
        try:
            status = _run(arguments)
            sys.stdout.flush()  # at the interpreter's end nobody could tell of a full disk
        except BrokenPipeError:  # who read it has enough
            return int(ExitCode.INTERNAL)
        except OSError as problem:
            if problem.filename is None:
                raise
            error = _file_error(problem)
            print_error(error)
            return int(error.exit_code)
        return status


def _run(arguments: Sequence[str] | None) -> int:
    try:
        outcome = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="bftrainer",
            standalone_mode=False,
        )
    except BftError as error:
        print_error(error)
        return int(error.exit_code)
    except click.ClickException as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":  # by name: older clicks lack it
            problem.show()
            return int(ExitCode.USAGE)
        from bftrainer.cli.mistakes import usage_error  # noqa: PLC0415 - for mistakes only

        print_error(usage_error(problem))
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else int(ExitCode.OK)


def print_error(error: BftError) -> None:
    """Print code, cause and next step to standard error."""
    if isinstance(error, NoDaemonError):
        from bftrainer.cli.no_daemon import led  # noqa: PLC0415 - asks the site

        context = click.get_current_context(silent=True)
        verb = ""
        if context is not None:
            verb = context.info_name or ""
        error = led(error, verb)
    cause, *further_causes = error.cause_lines()
    lines = (f"error {error.code}: {cause}", *further_causes, f"next: {error.next_step}")
    with contextlib.suppress(OSError):  # a full disk there, too: the exit code is all that is left
        print_lines(*lines, err=True)


def _file_error(problem: OSError) -> BftError:
    if streams.is_standard(problem):
        return BftError(
            "BFT-1458",
            f"{why(problem)}: the output is not complete.",
            "Make room where it goes, or send it elsewhere.",
        )
    return BftError(
        "BFT-1069",
        f"{why(problem)}.",
        "Check that this file and the directories above it exist and are open to you.",
        exit_code=exit_code_of(problem),
    )


if __name__ == "__main__":
    sys.exit(main())
