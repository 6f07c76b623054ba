"""What a test cluster tells a daemon about itself."""

from __future__ import annotations

from pathlib import Path

from slurm_plugins.testcluster import ClusterConfig

AT = Path("/lab")
CONF = {"slurm_conf": "/lab/etc/slurm.conf"}


def test_a_daemon_is_told_of_the_hook_and_the_quality_of_service_where_there_are_any() -> None:
    hook = {"hook_file": "/lab/hook/told"}
    assert ClusterConfig(directory=AT).batch_options() == CONF
    hooked = ClusterConfig(directory=AT, has_hook=True)
    assert hooked.batch_options() == CONF | hook
    assert hooked.batch_options(is_told=False) == CONF
    ranked = ClusterConfig(directory=AT, has_hook=True, accounting=True, preempt_type="qos")
    assert ranked.batch_options() == CONF | hook | {"qos": "bfqos"}
