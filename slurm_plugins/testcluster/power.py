"""Power saving of a test cluster: a node that is powered down has no slurmd.

Used by ``cluster`` if the configuration asks for it. Only nodes that an administrator powers down
(``set_node(name, "power_down")``) go off; what needs them boots them, and each boot is noted.
"""

from __future__ import annotations

from slurm_plugins.testcluster.config import ClusterConfig

_SUSPEND = """\
#!/bin/sh
PATH={path}
for node in $(scontrol show hostnames "$1"); do
  kill "$(cat {run}/slurmd.$node.pid)"
done
"""
# Without -b it would not count as booted.
_RESUME = """\
#!/bin/sh
PATH={path} SLURM_CONF={conf}
export PATH SLURM_CONF
for node in $(scontrol show hostnames "$1"); do
  echo "$node" >>{run}/booted
  slurmd -f {conf} -b -N "$node"
done
"""
_PROGRAMS = {"SuspendProgram": ("suspend.sh", _SUSPEND), "ResumeProgram": ("resume.sh", _RESUME)}
_A_DAY_S = 86_400


def settings(config: ClusterConfig) -> dict[str, object]:
    """Return the settings for slurm.conf."""
    etc = config.slurm_conf.parent
    programs = {key: etc / name for key, (name, _) in _PROGRAMS.items()}
    # Idle nodes stay up: a day is longer than any cluster lives.
    return {**programs, "SuspendTime": _A_DAY_S, "SuspendTimeout": 2, "ResumeTimeout": 30}


def install(config: ClusterConfig) -> None:
    """Write the programs."""
    for name, text in _PROGRAMS.values():
        script = config.slurm_conf.parent / name
        run = config.directory / "run"
        script.write_text(text.format(path=config.path, conf=config.slurm_conf, run=run))
        script.chmod(0o755)


def booted(config: ClusterConfig) -> list[str]:
    """Return the nodes that were booted, in order."""
    notes = config.directory / "run" / "booted"
    if not notes.exists():
        return []
    return notes.read_text().split()
