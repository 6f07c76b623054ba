"""All that the hook for Lightning uses and Lightning does not promise to keep.

Looked at in ``lightning`` 2.5 and 2.6; without any of these a script fails at its first batch with
an ``AttributeError`` that names it. Each function says what it is for. Used by ``lightning``.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

# What can be looked up without an object, within the package.
NAMES = (
    "trainer.call._call_strategy_hook",
    "Trainer._results",
    "LightningModule._on_before_batch_transfer",
    "plugins.precision.Precision._after_closure",
    "loops.training_epoch_loop._TrainingEpochLoop._build_kwargs",
    "loops.optimization.automatic._AutomaticOptimization._make_closure",
)
# Two packages with the same classes: use the one that the script has imported.
_is_old_name = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
PACKAGE = "pytorch_lightning" if _is_old_name else "lightning.pytorch"


def module_of(name: str = "") -> Any:
    """Return a module of the package."""
    return importlib.import_module(f"{PACKAGE}.{name}" if name else PACKAGE)


def replace_environment(trainer: Any, environment: Any) -> None:
    """Replace a Trainer's view of the batch job, before it sets signal handlers for that.

    The public way, ``plugins=[...]``, comes too late for a callback.
    """
    trainer._accelerator_connector.cluster_environment = environment  # noqa: SLF001


def replace_log(trainer: Any, log: Callable[..., None]) -> None:
    """Have a Trainer call this to hand metrics to its loggers."""
    trainer._logger_connector.log_metrics = log  # noqa: SLF001


def log_metrics(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Hand metrics to a Trainer's loggers as it would itself."""
    connector = trainer._logger_connector  # noqa: SLF001
    type(connector).log_metrics(connector, *args, **kwargs)


def results_of(trainer: Any) -> Any:
    """Return the metrics of the loop that ends now; ``callback_metrics`` has others', too."""
    return trainer._results  # noqa: SLF001


def placed(trainer: Any, batch: Any) -> Any:
    """Return a batch where the model is, by the hooks of the script's module."""
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)  # noqa: SLF001
    call = module_of("trainer.call")._call_strategy_hook  # noqa: SLF001
    return call(trainer, "batch_to_device", batch, dataloader_idx=0)


def closure_of(trainer: Any, batch: Any) -> Callable[[], Any]:
    """Return forward and backward pass over a batch, as Lightning would hand it to an optimizer."""
    loop = trainer.fit_loop.epoch_loop
    index = max(0, loop.batch_idx)
    arguments = loop._build_kwargs(OrderedDict(), batch, index)  # noqa: SLF001
    make = loop.automatic_optimization._make_closure  # noqa: SLF001
    closure: Callable[[], Any] = make(arguments, trainer.optimizers[0], index)
    return closure


def after_closure(trainer: Any, optimizer: Any) -> None:
    """Call the hooks before an update, and clip."""
    trainer.precision_plugin._after_closure(trainer.lightning_module, optimizer)  # noqa: SLF001


def rename_log(logger: Any, version: str) -> None:
    """Let a ``CSVLogger`` go on in another directory."""
    logger._version, logger._experiment = version, None  # noqa: SLF001
