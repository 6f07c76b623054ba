"""A worker runs a module as ``python -m`` does."""

from __future__ import annotations

import json
from pathlib import Path

from bftrainer.ground.main_module import described
from tests.elastic.controller import Controller, TemplateProcess

TRAINS = """\
import json, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from .data import x
from bftrainer import elastic

net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
run = elastic.Run(net, sgd, DataLoader(TensorDataset(x), batch_size=8), epochs=1)
for _ in run.epochs():
    for (a,) in run.batches():
        sgd.zero_grad()
        net(a).mean().backward()
        run.step()
print(json.dumps([__name__, __package__, __spec__.name, sys.modules["__main__"].__file__,
                  sys.argv, sys.path[0], os.environ.get("BFT_MODULE")]))
"""


def test_a_module_has_its_package_arguments_and_working_directory(
    tmp_path: Path, template: TemplateProcess
) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text("import torch\nx = torch.ones(16, 2)\n")
    file = package / "train.py"
    file.write_text(TRAINS)
    with Controller(tmp_path, template) as c:
        module = described("pkg.train", str(file))
        ids = c.begin(file, ["--lr", "0.1"], environment=(("OMP_NUM_THREADS", "1"), module))
        c.finished()
        said = json.loads(c.workers[ids[0]].log.read_text().splitlines()[-1])
    assert said == [
        *("__main__", "pkg", "pkg.train", str(file)),
        *([str(file), "--lr", "0.1"], str(tmp_path), None),
    ]
