"""A stand-in of ``jsrun``: starts one task on each compute node of its job.

A task is a session of its own, so that signals to the job's processes do not reach it: jsrun passes
them on. It ends with jsrun, as the tasks of a killed job step do. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

WITH_VALUE = {
    *("--nrs", "--rs_per_host", "--tasks_per_rs", "--cpu_per_rs", "--gpu_per_rs", "--bind"),
}
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def read(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split options from the command."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        if rest[0] not in WITH_VALUE or len(rest) < 2:
            raise SystemExit(f"jsrun: unknown option {rest[0]}")
        name = rest.pop(0)
        options[name] = rest.pop(0)
    return options, rest


def main() -> int:
    """Run a job step."""
    if "TMPDIR" in os.environ:
        sys.stderr.write("Error: Remote JSM server is not responding on host batch1\n")
        return 1
    options, command = read(sys.argv[1:])
    hosts = list(dict.fromkeys(os.environ.get("LSB_HOSTS", "").split()))
    if not hosts or not hosts[0].startswith("batch") or os.environ.get("HOSTNAME") != hosts[0]:
        sys.stderr.write("Error: jsrun runs on the launch node of a job only\n")
        return 1
    nodes, wanted = hosts[1:], int(options["--nrs"])
    whole = options.get("--cpu_per_rs"), options.get("--gpu_per_rs"), options.get("--bind")
    if wanted > len(nodes) or options.get("--rs_per_host") != "1" or not command:
        sys.stderr.write("Error: It is not possible to create a resource set\n")
        return 1
    tasks: list[int] = []

    def pass_on(number: int, _: object) -> None:
        for pid in tasks:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there are tasks
    for name in nodes[:wanted]:
        words = ["setpriv", "--pdeathsig", "KILL", *command]
        variables = {
            **os.environ,
            "HOSTNAME": name,
            "JSM_TEST_WHOLE": " ".join(map(str, whole)),
        }
        tasks.append(
            os.posix_spawnp(
                words[0],
                words,
                variables,
                setsid=True,
                setsigmask=(),
                setsigdef=PASSED_ON,
            )
        )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    statuses = []
    for pid in list(tasks):
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        tasks.remove(pid)
    return max(code if code >= 0 else 128 - code for code in statuses)


if __name__ == "__main__":
    raise SystemExit(main())
