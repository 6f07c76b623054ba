"""The lab's verbs, as ``bftrainer.cli.verb_plugins`` finds them; it imports nothing.

``policy test``, ``policy train`` and three verbs of ``study`` stand beside verbs of other rooms, as
they replay or draw.
"""

_FIRST = "Begin here"
_RESEARCH = "Before there is a site, and research"
# words after bftrainer -> (module:command, text for --help, title there, verb that it precedes)
VERBS = {
    "try": (
        "bftrainer.lab.verbs.tryout:try_out",
        "Try your own script on nodes that come and go here.",
        _FIRST,
        "up",
    ),
    "demo": (
        "bftrainer.lab.verbs.tryout:demo",
        "Watch trainers live on the idle nodes of this machine.",
        _FIRST,
        "up",
    ),
    "whatif": (
        "bftrainer.lab.verbs.simulate:whatif",
        "Say what your machine's idle time is worth.",
        _RESEARCH,
        "replay",
    ),
    "simulate": (
        "bftrainer.lab.verbs.simulate:simulate",
        "Replay a record (trace) of idle nodes.",
        _RESEARCH,
        "replay",
    ),
    "compare": (
        "bftrainer.lab.verbs.simulate:compare",
        "Play policies on the same idle nodes.",
        _RESEARCH,
        "replay",
    ),
    "trace": (
        "bftrainer.lab.verbs.trace:trace",
        "Describe, make and convert such records.",
        _RESEARCH,
        "replay",
    ),
    "solve": (
        "bftrainer.lab.verbs.solve:solve",
        "Decide who gets which node, from a file.",
        _RESEARCH,
        "",
    ),
    "reproduce": (
        "bftrainer.lab.verbs.reproduce:reproduce",
        "Run a paper's evaluation again.",
        _RESEARCH,
        "",
    ),
    "policy test": (
        "bftrainer.lab.verbs.policy:test_policies",
        "Say what the policy NEW would have done instead of OLD, by the simulator.",
        "Verbs",
        "",
    ),
    "policy train": (
        "bftrainer.lab.verbs.policy:train_network",
        "Train the network of the policy dl2, and keep it if it is better.",
        "Verbs",
        "",
    ),
    "study status": (
        "bftrainer.lab.verbs.study_report:status",
        "Show the best trial, rungs and trials.",
        "Verbs",
        "best",
    ),
    "study deadline": (
        "bftrainer.lab.verbs.study_deadline:deadline",
        "Say whether idle nodes will do.",
        "Verbs",
        "",
    ),
    "study plot": (
        "bftrainer.lab.verbs.study_report:plot",
        "Draw values, parameters and rungs over time.",
        "Verbs",
        "",
    ),
}
