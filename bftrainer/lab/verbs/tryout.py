"""``bftrainer demo`` and ``try SCRIPT``: trainers on nodes that come and go on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.documents import document
from bftrainer.cli.logs import tail
from bftrainer.cli.module_script import AS_MODULE, file_of
from bftrainer.cli.next_commands import print_next
from bftrainer.cli.options import JSON, option, verb
from bftrainer.cli.output import is_terminal, print_json, print_lines
from bftrainer.cli.spec import build_spec
from bftrainer.cli.submit import warn_of_late_options
from bftrainer.cli.submit_checks import check_here, check_script
from bftrainer.cli.submit_options import (
    SCRIPT,
    SPEC_OPTIONS,
    chosen,
    given,
    parameters_of_tries,
)
from bftrainer.lab.verbs.report_text import print_report
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bftrainer.lab.demo.watch import Watch, WatchPage

LINE_INTERVAL_S = 2.0
LEGEND = (
    "n1=job: an ordinary job has the node, n1=cnn: the trainer cnn has it; cnn:2@1: cnn trains on 2"
    " nodes, in epoch 1."
)
TORCH = "torch"
# Options of submit that say how the script runs, not where and with which priority.
TAKEN = parameters_of_tries()
NO_WAIT = option("--no-wait", "End at once; otherwise the page stays on a terminal until Enter.")


@verb(
    option("--out", "Where timeline.png and summary.json go.",
           click.Path(file_okay=False, path_type=Path), Path("demo-out")),
    option("--nodes", "How many nodes the small cluster has.", click.IntRange(3, 64),
           lambda: min(16, max(4, 2 * len(os.sched_getaffinity(0)))),
           show_default="2 for each processor, 4 to 16", name="n_nodes"),
    option("--no-live", "A line every two seconds instead of a live page."),
    NO_WAIT,
    option("--lsf", "On a stand-in of LSF, by LSF's commands.", name="on_lsf"),
    JSON, name="demo",
    example="bftrainer demo --nodes 8 --out demo-out",
)  # fmt: skip
def demo(
    out: Path, n_nodes: int, *, no_live: bool, no_wait: bool, on_lsf: bool, as_json: bool
) -> None:
    """Watch three trainers live on the nodes that ordinary jobs leave idle.

    Needs no cluster: nodes are process groups on this machine. On a terminal the daemon's page is
    served, too; open the link that is printed. Everything is taken down again; the page is kept as
    page.html, which opens without a server.
    """
    from bftrainer.lab.demo.page import FILE_NAME, RunPage  # noqa: PLC0415 - slow to import
    from bftrainer.lab.demo.run import run_demo  # noqa: PLC0415
    from bftrainer.lab.demo.watch import NEXT, report_of  # noqa: PLC0415

    screen = DemoScreen(is_live=not no_live, on_stderr=as_json)
    with RunPage(screen.say, out / FILE_NAME, is_served=screen.is_live, tail=tail) as page:
        with screen:
            summary = run_demo(out, n_nodes, screen.see, screen.say, page, on_lsf=on_lsf)
        if as_json:
            print_json(document("demo", summary))
        else:
            print_lines("")
            print_report(report_of(summary))
            print_lines("", *NEXT.splitlines())
            files = [out / name for name in ("timeline.png", "summary.json", FILE_NAME)]
            print_lines(f"  this run          {', '.join(map(str, files))}")
        if not no_wait:
            page.wait()


def drawn(page: WatchPage, width: int) -> RenderableType:
    """Return a page of the demonstration as rich draws it, laid out for a terminal's width."""
    from rich.console import Group  # noqa: PLC0415 - only who watches pays for it
    from rich.text import Text  # noqa: PLC0415

    from bftrainer.cli.tables import lines_of, wrapped  # noqa: PLC0415

    parts: list[RenderableType] = [Text(page.title, style="bold")]
    for table in (page.nodes, page.trainers):
        parts.append(Text(""))
        for part, _ in lines_of(table.headers, table.rows, width, styles=page.styles):
            if isinstance(part, Text):  # a page that is drawn again cannot be wider than its place
                part.no_wrap, part.overflow = False, "fold"
            parts.append(part)
    return Group(*parts, Text(""), *map(Text, wrapped(page.counters, width, indent=2)))


class DemoScreen:
    """The live page on a terminal, otherwise lines."""

    def __init__(self, *, is_live: bool, on_stderr: bool) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(stderr=on_stderr)
        self._live: Live | None = None
        if is_live and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._said_s = 0.0

    @property
    def is_live(self) -> bool:
        """Whether somebody watches."""
        return self._live is not None

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def see(self, watch: Watch) -> None:
        """Show a watch."""
        from bftrainer.lab.demo.watch import line, page  # noqa: PLC0415

        if self._live is not None:
            self._live.update(drawn(page(watch), self._console.width), refresh=True)
        elif time.monotonic() - self._said_s >= LINE_INTERVAL_S or watch.is_over:
            if not self._said_s:
                self.say(LEGEND)
            self._said_s = time.monotonic()
            self.say(line(watch))

    def say(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _MachineNodes(click.IntRange):
    """A number of nodes, which is no range of sizes as ``submit`` takes it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        if ":" in str(value):
            self.fail(
                f"{value} is a range of sizes, as for submit. Here it is how many nodes there are, "
                f"{self.min} to {self.max}; the script grows and shrinks on them",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@verb(
    *(option for option in SPEC_OPTIONS if option.name in TAKEN),
    *SCRIPT,
    AS_MODULE,
    option("-N, --nodes", "Nodes on this machine.", _MachineNodes(2, 16), 3, name="n_nodes"),
    option("--seconds S", "End it after this time.  [default: when the script ends]",
           click.FloatRange(1.0, 86400.0), name="limit_s"),
    option("--compare", "Run it in one process as well, before, and say what differs.",
           name="compares"),
    option("--out", "Where page.html goes.  [default: try-out, on a terminal]",
           click.Path(file_okay=False, path_type=Path), name="out"),
    NO_WAIT,
    JSON, name="try", context_settings={"allow_interspersed_args": False},
    example="bftrainer try --nodes 4 --compare train.py",
)  # fmt: skip
@click.pass_context
def try_out(
    ctx: click.Context,
    /,
    script: str,
    args: tuple[str, ...],
    n_nodes: int,
    limit_s: float | None,
    *,
    is_module: bool,
    compares: bool,
    out: Path | None,
    no_wait: bool,
    as_json: bool,
    **_: Any,
) -> None:
    """Run the training script SCRIPT on nodes that come and go on this machine.

    Needs no cluster and no daemon. On a terminal the link of a page is printed, which is kept as
    page.html. One worker is killed while it trains. Says at the end whether every sample was used
    exactly once per epoch. Checkpoints are not kept. With --compare also whether elastic training
    changes anything: losses, final parameters, samples, time.
    """
    module = ""
    if is_module:
        module = script
        script = file_of(module, given(ctx), os.environ)
    check_script(script)
    names = {*TAKEN, "runtime"}
    values = {name: value for name, value in chosen(ctx, script).items() if name in names}
    values["module"] = module
    spec = build_spec(script, args, values, os.environ)
    if spec.runtime != TORCH:
        raise UsageError(
            "BFT-1056",
            f"A try needs runtime torch, and {script} asks for {spec.runtime}.",
            "Submit it to a daemon, or try a script that uses bftrainer.elastic.",
        )
    check_spec(spec)
    check_here(spec)
    warn_of_late_options(ctx, script, args)
    from bftrainer.lab.demo.page import RunPage  # noqa: PLC0415 - slow to import
    from bftrainer.lab.tryout import run_try  # noqa: PLC0415

    def say(text: str) -> None:
        print_lines(*text.splitlines(), err=as_json)

    file = _page_file(out, is_watched=is_terminal() and not as_json)
    with RunPage(say, file, is_served=is_terminal() and not as_json, tail=tail) as page:
        try:
            report = run_try(spec, n_nodes, limit_s, say, compares=compares, page=page)
            if as_json:
                print_json(document("try", report))
                return
            _print_next(ctx.params["script"], has_finite_loss=not report.warning)
        finally:
            if not no_wait:
                page.wait()  # what has failed is worth a look, too


def _page_file(out: Path | None, *, is_watched: bool) -> Path | None:
    """Return where the page is kept; None: nobody wants it."""
    if out is None and not is_watched:
        return None
    from bftrainer.lab.demo.page import FILE_NAME  # noqa: PLC0415 - slow to import

    return (out or Path("try-out")) / FILE_NAME


def _print_next(script: str, *, has_finite_loss: bool) -> None:
    if not has_finite_loss:
        print_next(("bftrainer help BFT-1435", "correct the loss before you submit the script"))
        return
    print_next(
        ("bftrainer up", "your own daemon, on a cluster with a preemptable partition"),
        (f"bftrainer submit {script}", "hand the script to a daemon"),
    )
