"""Words of other programs, and mistyped ones of ours, with the verbs that they mean.

Words of Slurm, LSF, PBS and of process tools lead to the verb that does the same here. Options of
``sbatch`` that have no meaning here stand in ``sbatch_options``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

# verb of ours -> the words of others that mean it
_WORDS = {
    "status": "squeue qstat bjobs queue list ls ps jobs show info trainers stat condor_q sstat",
    "nodes": "sinfo bhosts pbsnodes lshosts hosts node",
    "resume": "undrain reopen",
    "submit": "sbatch srun salloc qsub bsub run start launch train mpirun torchrun exec begin",
    "cancel": "scancel qdel bkill kill stop delete del rm remove abort terminate end",
    "hold": "suspend pause bstop qhold freeze",
    "release": "unhold bresume qrls unpause unsuspend",
    "requeue": "restart retry rerun brequeue qrerun continue",
    "update": "scontrol modify change set resize scale bmod qalter",
    "logs": "log tail output stdout bpeek cat attach",
    "explain": "why reason sprio",
    "account": "sacct sreport usage bacct sshare cost costs bill",
    "report": "harm",
    "web": "dashboard ui gui browser page serve",
    "top": "watch htop monitor",
    "policy": "config settings sacctmgr",
    "doctor": "diagnose sdiag",
    "try": "check test",
    "down": "shutdown quit exit",
    "help": "man doc docs documentation",
    "study": "sweep tune search hpo",
}
# Words without a trainer's name may mean a daemon: word -> that verb, and what is said of it.
_OF_DAEMONS = {
    **dict.fromkeys(("start", "begin", "launch", "run"), ("up", "Start your own daemon.")),
    **dict.fromkeys(("stop", "end", "kill", "terminate"), ("down", "End your own daemon.")),
    "restart": ("down", "End your own daemon; 'bftrainer up' starts it again."),
    **dict.fromkeys(("suspend", "pause", "freeze"), ("drain --all", "Give all nodes back.")),
    **dict.fromkeys(("unpause", "unsuspend", "continue"), ("resume", "Take nodes again.")),
}
_ON_STOP = "bftrainer drain --all, then systemctl stop bftrainer"
_ON_START = "systemctl start bftrainer"
# Words without a trainer's name may mean the service of a site: word -> what to type as root.
_OF_SERVICES = {
    **dict.fromkeys(("stop", "end", "kill", "terminate", "shutdown", "quit", "exit"), _ON_STOP),
    **dict.fromkeys(("start", "begin", "launch"), _ON_START),
    "restart": "systemctl restart bftrainer",
}
# Words of what no verb does -> the page that says how it is done.
_PAGES = {
    **dict.fromkeys(
        ("remove", "uninstall", "purge", "removal", "switch-off", "disable", "turn-off"),
        "for-the-one-who-decides",
    ),
    **dict.fromkeys(("install", "installation", "setup", "deploy", "enable"), "slurm-site"),
}
_OF_TRAINERS = frozenset({"remove"})  # with a trainer's name they are a verb's words
_OF_JOB_SCRIPTS = (".sh", ".sbatch", ".slurm", ".job")
NEAR = 0.65  # of 1: how alike a mistyped word is
_PREFIXES = frozenset({"scontrol"})  # the next word says what is wanted
_AFTER_PREFIX = {"resume": "release"}  # ours is of all nodes
_KINDS = frozenset({"job", "jobs", "jobid"})
MOST_SHOWN = 200  # characters of a command line
VERB_MEANT = {word: verb for verb, words in _WORDS.items() for word in words.split()}

_BY_NAMES = (
    "It takes trainers by their ids or names, no users and no partitions.",
    "bftrainer {} ID...; 'bftrainer status' lists ids.",
)
_BY_USER = (
    "It takes trainers by ids, or by user, name and state.",
    "bftrainer {} ID..., or --user USER, --name NAME, --state STATE.",
)
_ONE_PARTITION = "A daemon has one partition, and all of it is shown."
_WHATIF = (
    "It says what a machine's idle time is worth; bftrainer policy test says what a setting of the "
    "policy changes."
)
_POLICY_STEP = (
    "Edit it (the service's is /etc/bftrainer/policy.yaml), check it by bftrainer policy check "
    "FILE, then bftrainer policy reload."
)
_OF_PARTITIONS = ("-p", "--partition")
_OF_USERS = ("-u", "--user", "--me", *_OF_PARTITIONS)
_OF_JOBS = (*_OF_PARTITIONS, "-q", "--qos", "-A", "--account", "-w", "--nodelist")
# Verb of ours -> options that it does not take, what is said, and what to type.
_OF_VERBS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "requeue": (_OF_USERS, *_BY_NAMES),
    "update": (_OF_USERS, *_BY_NAMES),
    "cancel": (_OF_JOBS, *_BY_USER),
    "hold": (_OF_JOBS, *_BY_USER),
    "release": (_OF_JOBS, *_BY_USER),
    "status": (
        _OF_PARTITIONS,
        _ONE_PARTITION,
        "bftrainer {}; 'squeue -p PARTITION' lists jobs of the batch system.",
    ),
    "nodes": (
        _OF_PARTITIONS,
        _ONE_PARTITION,
        "bftrainer {}; 'sinfo -p PARTITION' lists nodes of the batch system.",
    ),
    "whatif": (
        ("--max-nodes",),
        _WHATIF,
        "bftrainer policy test OLD NEW --trace FILE, where NEW is a policy file with max_nodes.",
    ),
}
# Verbs with verbs of their own: word that none of these is -> what is said, and what to type.
_OF_GROUPS = {
    ("policy", word): (
        "A policy is a file.",
        _POLICY_STEP,
    )
    for word in ("set", "edit", "change", "update", "modify")
}
# Verbs with verbs of their own -> that which takes a file, and what follows the file.
_FILE_VERBS = {
    "trace": ("info", ""),
    "policy": ("check", ""),
    "journal": ("verify", ""),
    "study": ("run", " SCRIPT"),
}
_IS_FILE = re.compile(r"[^-].*(?:/.*|\.[A-Za-z0-9]{1,8})")
_SOURCES = {".swf": "--swf", ".txt": "--sacct", ".sacct": "--sacct"}  # of whatif, by suffix
_OTHER_SOURCE = "--trace"
JOURNALS = (
    "The journal of the site's service is /var/lib/bftrainer/journal.db; of a daemon of your own "
    "it is journal.db in its state directory, below ~/.bftrainer."
)
# Verb -> what it is of, and what to type with the words that it does not take ("{}").
_SUPERFLUOUS = {
    "up": ("It takes no script.", "bftrainer up, then bftrainer submit {}"),
    "daemon": ("It takes no script.", "bftrainer submit {}, while the daemon runs"),
    "demo": ("It shows scripts of its own.", "bftrainer try {}"),
    "down": (
        "It ends the daemon.",
        "bftrainer cancel {} ends a trainer; bftrainer down the daemon",
    ),
    "nodes": ("It shows all nodes.", "bftrainer nodes"),
    "status": ("It shows one trainer, or all.", "bftrainer status"),
    "web": ("It shows all trainers.", "bftrainer web; bftrainer status {} for one"),
    "top": ("It shows all trainers.", "bftrainer top; bftrainer status {} for one"),
    "account": ("It takes no names.", "bftrainer account --by user,trainer"),
    "explain": ("It is of one trainer.", "bftrainer explain ID, for each of them"),
    "logs": ("It is of one trainer.", "bftrainer logs ID, for each of them"),
    "whatif": ("The file is named by an option.", "bftrainer whatif {source} {}"),
}
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
# Verbs that begin training, where options of sbatch are tried.
BEGIN = frozenset({"submit", "try", "run"})


def without_prefix(word: str, rest: Sequence[str]) -> tuple[str, list[str]]:
    """Return the word that says what is wanted, and what follows: ``scontrol show job 7``."""
    if word.lower() not in _PREFIXES or not rest:
        return word, list(rest)
    verb = _AFTER_PREFIX.get(rest[0].lower(), rest[0])
    return verb, [further for further in rest[1:] if further.lower() not in _KINDS]


def verb_meant(word: str, verbs: Iterable[str]) -> str:
    """Return the verb that a word may have meant; "": none."""
    names = list(verbs)
    verb_of = {synonym: verb for synonym, verb in VERB_MEANT.items() if verb in names}
    verb_of |= zip(names, names, strict=True)  # a verb means itself before it means another one
    near = get_close_matches(word.lower(), verb_of, n=1, cutoff=NEAR)
    return verb_of[near[0]] if near else ""


def daemon_verb_meant(word: str) -> tuple[str, str]:
    """Return the verb on a daemon that a word may mean, too, and what it does; "": none."""
    return _OF_DAEMONS.get(word.lower(), ("", ""))


def service_meant(word: str) -> str:
    """Return what root types if a word means the service of a site; "": it does not."""
    return _OF_SERVICES.get(word.lower(), "")


def page_meant(word: str, rest: Sequence[str] = ()) -> str:
    """Return the page on what no verb does, though its name is typed as one; "": none."""
    if rest and word.lower() in _OF_TRAINERS:
        return ""
    return _PAGES.get(word.lower(), "")


def corrected(path: str, verb: str, rest: Sequence[str]) -> str:
    """Return the command line that was meant; its help where options of another program follow."""
    if any(word.startswith("-") for word in rest):
        return f"{path} {verb} -h"
    if verb == "submit" and rest and rest[0].endswith(_OF_JOB_SCRIPTS):
        verb = "submit --from-sbatch"
    return shlex.join((*path.split(), *verb.split(), *rest))[:MOST_SHOWN]


def superfluous(message: str, verb: str) -> tuple[str, str]:
    """Return what a verb is of that got more words than it takes, and what to type; "": unknown."""
    extra = _EXTRA.match(message)
    if extra is None or verb not in _SUPERFLUOUS:
        return "", ""
    hint, step = _SUPERFLUOUS[verb]
    source = _SOURCES.get(Path(extra[1]).suffix.lower(), _OTHER_SOURCE)
    return hint, step.format(extra[1][:MOST_SHOWN], source=source)


def option_meant(option: str, verb: str) -> tuple[str, str]:
    """Return a sentence on what takes the place of an option ("": none), and what to type."""
    options, answer, step = _OF_VERBS.get(verb, ((), "", ""))
    if option in options:
        return answer, step.format(verb)
    return "", ""


def in_group(group: str, word: str) -> tuple[str, str]:
    """Return what is said of a word that is no verb of a group, and what to type; "": nothing.

    The word may be a file that one of the group's verbs takes.
    """
    if group in _FILE_VERBS and _IS_FILE.fullmatch(word):
        verb, ending = _FILE_VERBS[group]
        line = f"bftrainer {group} {verb}"
        step = f"{line} {shlex.quote(word)}"[:MOST_SHOWN]
        return f"Did you mean '{line}'?", f"{step}{ending}"
    return _OF_GROUPS.get((group, word.lower()), ("", ""))


def program_meant(rest: Sequence[str]) -> tuple[str, str]:
    """Return the Python script in the words after a verb that begins training, and a reason.

    They may be a command line of another program, as ``srun hostname``, which ``submit`` does not
    take as a script. "", "": they are not.
    """
    if not rest or rest[0].startswith("-") or _IS_FILE.fullmatch(rest[0]):
        return "", ""
    script = next((word for word in rest if word.endswith(".py")), "")
    return script, "It takes a training's Python script, not any command line."
