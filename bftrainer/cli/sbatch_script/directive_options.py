"""The options of ``submit`` that take the place of ``#SBATCH`` directives. Pure."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Sequence
from typing import Final

from bftrainer.api.admission import notification_fault
from bftrainer.cli.sbatch_options import OptionValue, SbatchOption
from bftrainer.cli.sbatch_script.container_image import EnteredImage, entered_by_pyxis
from bftrainer.cli.sbatch_script.directives import SbatchDirective
from bftrainer.cli.sbatch_script.resources import JobSize, SizeChoice, gpus_of_gres, job_size
from bftrainer.cli.sbatch_script.shell_values import INDEX, Value
from bftrainer.cli.sbatch_script.translation import ScriptLine, TranslationContext

_AT_END: Final = frozenset({"END", "FAIL", "ALL"})  # mails of sbatch that --notify sends, too
_ON_CALL: Final = "Write it on the command line of submit."
_NO_CONVERSE: Final = "There is no such option of submit."
_NO_SIZE: Final = "There is no trainer whose size it could say."
_COUNTED: Final = "It is in the number of workers."
_ENVIRONMENT: Final = re.compile(r"[A-Za-z_]\w*\Z")
_CALLS: Final = frozenset({"parsable", "wait"})
_REPLACED: Final = "A later line says something else."
# Directives that are taken together with others, or by several options.
_SIZES_SAID: Final = frozenset({"nodes", "gpus", "gpus-per-node", "gpus-per-task"})


class DirectiveOptions:
    """What the directives of a job script become."""

    def __init__(self, directives: Sequence[SbatchDirective], context: TranslationContext) -> None:
        self.size: JobSize = job_size(directives)
        self.directory = ""  # absolute; "": that of the submission
        self.exports_all = True  # as sbatch does by default
        self.has_array = False
        self.image: EnteredImage | None = None  # a container in which the script itself runs
        self.remarks: list[str] = []
        self._directives = directives
        self._context = context
        self._words: dict[str, tuple[str, ...]] = {}  # option of sbatch -> of submit
        self._became: dict[int, str] = {}  # directive's place -> what it became
        self._reasons: dict[int, str] = {}
        self._uses_tasks = False
        self.job_name = ""
        last = {_name(directive): place for place, directive in enumerate(directives)}
        for place, directive in enumerate(directives):
            self._take(place, directive, is_last=last.get(_name(directive)) == place)

    def words(self) -> tuple[str, ...]:
        """Return the options, but for the sizes."""
        return tuple(itertools.chain.from_iterable(self._words.values()))

    def _take(self, place: int, directive: SbatchDirective, *, is_last: bool) -> None:
        option = directive.option
        if option is None or directive.fault:
            self._reasons[place] = directive.fault
        elif option.is_size:
            self._reasons[place] = (self.size.faults or {}).get(place, "")
        elif not is_last and option.name != "export":
            self._reasons[place] = _REPLACED
        elif option.name in _CALLS:
            self._reasons[place] = _ON_CALL
        else:
            self._take_by_name(place, directive, option)

    def _take_by_name(self, place: int, directive: SbatchDirective, option: SbatchOption) -> None:
        match option.name:
            case "array":
                self.has_array = self._hand_on(place, directive)
            case "job-name":
                self._job_name(place, directive)
            case "chdir":
                self._chdir(place, directive)
            case "export":
                self._export(place, directive)
            case "mail-type":
                self._mail(place, directive)
            case "mail-user":
                self._mail_user(place, directive)
            case "container-image" | "container-mounts":
                self._container(place, directive)
            case _ if option.flag:
                self._hand_on(place, directive)
            case _:
                self._reasons[place] = option.reason

    def _hand_on(self, place: int, directive: SbatchDirective) -> bool:
        """Hand a value on to the option of the same meaning; return whether it takes it."""
        option = directive.option
        if option is None:
            return False
        words: tuple[str, ...] = (option.flag,)
        value = None
        if option.value is OptionValue.REQUIRED:
            value = directive.value
            words = (option.flag, value)
        fault = self._context.judge(option.flag, value)
        if fault == "":
            self._words[option.name] = words
            self._became[place] = " ".join(words)
            return True
        self._reasons[place] = option.reason or fault or _NO_CONVERSE
        return False

    def _job_name(self, place: int, directive: SbatchDirective) -> None:
        self.job_name = directive.value
        if directive.value.strip():
            self._hand_on(place, directive)
        else:
            self._reasons[place] = "The name is empty."

    def _chdir(self, place: int, directive: SbatchDirective) -> None:
        path = directive.value
        self.directory = posixpath.normpath(posixpath.join(self._context.directory, path))
        self._became[place] = f"--chdir {path}"

    def _export(self, place: int, directive: SbatchDirective) -> None:
        """Take ``ALL,KEY=VALUE,KEY2`` apart, of which submit takes one at a time."""
        words: list[str] = []
        missing: list[str] = []
        self.exports_all = False
        for part in directive.value.split(","):
            name, has_value, value = part.partition("=")
            if part == "ALL":
                self.exports_all = True
            elif part in ("NONE", "NIL", ""):
                self.exports_all = False
            elif not has_value and name in self._context.environment:
                value, has_value = self._context.environment[name], "="
            if part in ("ALL", "NONE", "NIL", ""):
                continue
            is_taken = bool(has_value and _ENVIRONMENT.match(name))
            if is_taken and self._context.judge("--export", f"{name}={value}") == "":
                words += ("--export", f"{name}={value}")
            else:
                missing.append(name)
        self._words[f"export {place}"] = tuple(words)
        if words:
            self._became[place] = " ".join(words)
        elif self.exports_all:
            self._became[place] = "--export ALL"
        elif not missing:
            self._became[place] = "NONE"
        if missing:
            self._reasons[place] = f"{', '.join(missing)} is set nowhere here."

    def _mail(self, place: int, directive: SbatchDirective) -> None:
        """Take the kinds of mail: --notify sends one at the end."""
        if self._hand_on(place, directive):
            return
        kinds = frozenset(directive.value.upper().split(","))
        if not kinds & _AT_END:
            self._reasons[place] = "--notify sends mail at the end only."
            return
        target = "mail"
        if users := self._values("mail-user"):
            target = f"mail:{users[-1]}"
            if notification_fault(target):
                self._reasons[place] = "--notify takes no such address."
                return
        self._words["mail-type"] = ("--notify", target)
        self._became[place] = f"--notify {target}"
        self._reasons.pop(place, None)
        if kinds - _AT_END - {"NONE"}:
            self._reasons[place] = "Of the events only the end is told."

    def _container(self, place: int, directive: SbatchDirective) -> None:
        """Take the options of pyxis that name an image and its mounts together."""
        pyxis: dict[str, str] = {}
        for name in ("container-image", "container-mounts"):
            for value in self._values(name):
                pyxis[f"--{name}"] = value
        self.image = entered_by_pyxis(pyxis)
        if self.image is not None:
            self._became[place] = " ".join(self.image.options)
        elif directive.option is not None:
            self._reasons[place] = directive.option.reason

    def _mail_user(self, place: int, directive: SbatchDirective) -> None:
        if self._hand_on(place, directive):
            return
        *_, mail_types = ("", *self._values("mail-type"))
        is_at_end = not _AT_END.isdisjoint(mail_types.upper().split(","))
        if is_at_end and not notification_fault(f"mail:{directive.value}"):
            self._became[place] = f"--notify mail:{directive.value}"
            self._reasons.pop(place, None)

    def _values(self, name: str) -> list[str]:
        """Return the values of an option, in the order of the job script."""
        return [directive.value for directive in self._directives if _name(directive) == name]

    def sizes(self, choice: SizeChoice) -> tuple[str, ...]:
        """Return the options for the sizes, those left out that submit does not take."""
        options = choice.options
        for flag, value in zip(options[::2], options[1::2], strict=True):
            fault = self._context.judge(flag, value)
            if fault != "":
                why = fault or _NO_CONVERSE
                self.remarks.append(f"The sizes of the job are left out: {why}")
                return ()
        self._uses_tasks = choice.uses_tasks
        self.remarks.append(choice.reason)
        if choice.otherwise:
            self.remarks.append(
                "Where a site lends whole nodes only (BFT-1036), write instead:"
                f" {' '.join(choice.otherwise)}"
            )
        return options

    def lines(self, sizes: Sequence[str] | None) -> list[ScriptLine]:
        """Return what has become of every directive; ``sizes``: the options for them."""
        lines: list[ScriptLine] = []
        for place, directive in enumerate(self._directives):
            became, reason = self._became.get(place, ""), self._reasons.get(place, "")
            if directive.option is not None and directive.option.is_size and not reason:
                became, reason = self._of_size(directive, sizes or ())
            if not became and not reason:
                reason = _NO_CONVERSE
                if directive.option is not None:
                    reason = directive.option.reason
            text = f"#SBATCH {directive.text}"
            lines.append(ScriptLine(line=directive.line, text=text, became=became, reason=reason))
        return lines

    def _of_size(self, directive: SbatchDirective, sizes: Sequence[str]) -> tuple[str, str]:
        """Return what a directive about sizes became, and why it is left out."""
        option = directive.option
        if option is None or not sizes:
            return "", _NO_SIZE
        name, text = option.name, " ".join(sizes)
        if name == "gres":
            counts = [gpus_of_gres(part).n_gpus for part in directive.value.split(",")]
            if not any(counts):
                return "", option.reason
            return text, "" if all(counts) else option.reason
        if name in _SIZES_SAID or (name == "exclusive" and "--gres" in sizes):
            return text, ""
        if name in ("ntasks", "ntasks-per-node") and self._uses_tasks:
            return text, _COUNTED
        return "", option.reason


def _name(directive: SbatchDirective) -> str:
    return "" if directive.option is None else directive.option.name


def slurm_variables(
    options: DirectiveOptions, context: TranslationContext, *, has_array: bool
) -> dict[str, Value]:
    """Return the variables of Slurm whose values are the same for a trainer."""
    variables: dict[str, Value] = {
        "SLURM_SUBMIT_DIR": context.directory,
        "PWD": options.directory or context.directory,
    }
    if options.size.cpus_per_task:
        variables["SLURM_CPUS_PER_TASK"] = str(options.size.cpus_per_task)
    variables["SLURM_JOB_NAME"] = options.job_name or context.name
    variables |= {"@": tuple(context.arguments), "#": str(len(context.arguments))}
    if has_array:
        variables["SLURM_ARRAY_TASK_ID"] = INDEX
    return variables
