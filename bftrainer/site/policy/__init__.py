"""The administrator's policy: one YAML file with a schema, checked before it is used.

A file comes in, a frozen ``SitePolicy`` goes out; the daemon reads it at start and on
reload, ``bftrainer policy check`` before that.
"""

from bftrainer.site.policy.document import PolicyErrors, PolicyProblem
from bftrainer.site.policy.load import (
    LoadedPolicy,
    load_policy,
    load_policy_file,
    load_policy_files,
)
from bftrainer.site.policy.model import LogLevel, SitePolicy, policy_hash

__all__ = [
    "LoadedPolicy",
    "LogLevel",
    "PolicyErrors",
    "PolicyProblem",
    "SitePolicy",
    "load_policy",
    "load_policy_file",
    "load_policy_files",
    "policy_hash",
]
