"""The verb of studies, as ``bftrainer.cli.verb_plugins`` finds it; it imports nothing."""

# words after bftrainer -> (module:command, text for --help, title there, verb that it precedes)
VERBS = {
    "study": (
        "bftrainer.study.verbs.group:study",
        "Search hyper-parameters on idle nodes.",
        "Your trainers",
        "profile",
    ),
}
