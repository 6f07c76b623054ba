"""Job scripts for sbatch, translated: each beside what it becomes.

``sbatch_scripts/NAME.sh`` is written after what the guides of sites show, ``NAME.txt`` is what
``submit --from-sbatch`` says of it. After a change, write the expected texts anew by ``python -m
tests.unit.cli.test_sbatch_scripts``, and read what has changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.cli.job_script import OptionJudge
from bftrainer.cli.sbatch_script.translation import (
    SbatchTranslation,
    TranslationContext,
    report_lines,
)
from bftrainer.cli.sbatch_script.translator import translate
from bftrainer.cli.submit import submit

SCRIPTS = Path(__file__).with_name("sbatch_scripts")
DIRECTORY = "/home/ada/project"
ENVIRONMENT = {"HOME": "/home/ada", "USER": "ada", "SCRATCH": "/scratch/ada"}
SOURCES = {
    "train.py": "import torch\n",
    "train_ddp.py": "import torch\nfrom torch.nn.parallel import DistributedDataParallel\n",
    "pretrain.py": "import torch\nfrom torch.distributed.fsdp import FSDP\n",
    "generate_train.py": "import torch\nfrom bftrainer import elastic\n",
    "finetune.py": "from transformers import Trainer\n",
    "accelerated.py": "import torch, accelerate\n",
    "fit_lightning.py": "import lightning as L\n",
    "train_horovod.py": "import horovod.torch as hvd\n",
    "heat_mpi.py": "from mpi4py import MPI\n",
    "train_tf.py": "import numpy as np\nimport tensorflow as tf\n",
}


def translation_of(text: str, name: str = "job.sh", *arguments: str) -> SbatchTranslation:
    """Translate a job script with the real options of submit."""
    surroundings = TranslationContext(
        name=name,
        directory=DIRECTORY,
        environment=ENVIRONMENT,
        judge=OptionJudge(submit).fault_of,
        source_of=lambda path: SOURCES.get(Path(path).name),
        arguments=arguments,
    )
    return translate(name, text, surroundings)


def told(translation: SbatchTranslation) -> str:
    """Return all that is told of a translation, its obstacles included."""
    lines = [line for line, _ in report_lines(translation)]
    for obstacle in translation.obstacles:
        lines += [
            f"error {obstacle.code}: line {obstacle.line}: {obstacle.cause}",
            f"next: {obstacle.next_step}",
        ]
    return "\n".join((*lines, ""))


def names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.sh"))


@pytest.mark.parametrize("name", names())
def test_a_job_script_becomes_what_stands_beside_it(name: str) -> None:
    text = (SCRIPTS / f"{name}.sh").read_text()
    assert told(translation_of(text, f"{name}.sh")) == (SCRIPTS / f"{name}.txt").read_text()


def main() -> None:
    """Write what all job scripts become."""
    for name in names():
        text = (SCRIPTS / f"{name}.sh").read_text()
        (SCRIPTS / f"{name}.txt").write_text(told(translation_of(text, f"{name}.sh")))


if __name__ == "__main__":
    main()
