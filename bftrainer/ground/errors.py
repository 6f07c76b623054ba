"""Errors in the use of the elastic runtime: code, cause, next step.

Raised by ``Run`` and its parts, printed to the worker's log and reported as ``Failed``.
Standard library only, like everything a training process imports first.

Codes: 1401 model or optimizer does not fit, 1402 loader or sampler does not fit, 1403
arguments of ``Run``, 1404 two backward passes in one step, 1405 loops or ``step()`` out
of place, 1406 a batch without ``step()``, 1407 state that cannot be encoded, 1408
members built different models, 1409 no torch in the interpreter, 1410 the script
raised, 1411 the script could not be started, 1412 a checkpoint refused by the fence,
1413 a checkpoint that cannot be read, 1414 NCCL demanded but not usable, 1420 a framework
set up in a way its hook does not support, 1421 members that read different data, 1422 an
optimizer that steps outside the run, 1423 a script that trained nothing, 1424 one written
for torchrun, 1425 indices that are none, 1426 an order that differs between calls, 1427
rows of ``PerSample`` that do not fit, 1428 a script that its own children run again, 1429 shards
that have other samples than declared, 1430 no Horovod in the interpreter, 1431 no elastic
function of Horovod called, or one called again after its end, 1432 weights or a declaration that
contradict the loss, 1433 members whose datasets yield different samples, 1435 a loss that is no
finite number, 1436 a value that cannot be combined, 1437 workers at different places of the script,
1438 members that differ in their light state, 1439 in their parameters, 1450 a checkpoint of
other arguments, 1451 one of another schedule, 1455 a full disk, 1456 bftrainer failed. MPI: 1441
no mpi4py, 1442 an MPI that cannot connect, 1443 state that cannot be handed over, 1444 a
blocking call. Trials of a study: 1611 a reported metric that is no finite number, 1612 parameters
that cannot be read, 1613 a parameter that the study does not have.
"""

from __future__ import annotations


class ElasticError(Exception):
    """A failure with a stable code, its cause in one sentence and the next step."""

    def __init__(self, code: str, cause: str, next_step: str) -> None:
        super().__init__(f"{code}: {cause} {next_step}")
        self.code = code
        self.cause = cause
        self.next_step = next_step


def sharded(how: str) -> ElasticError:
    """Return BFT-1401 for a model that is cut over other processes than those of a node."""
    return ElasticError(
        "BFT-1401",
        f"The model is sharded over processes that are not those of a node ({how}).",
        "Use fully_shard(module, mesh=elastic.node_mesh()), see docs/howto/train-sharded.md; or"
        " submit the script, written for torchrun, with --runtime command.",
    )
