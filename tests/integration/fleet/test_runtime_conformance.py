"""The built-in runtimes under the tests that every runtime must pass."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainers.examples
from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.model.views import TrainerView
from tests.conformance.runtime import CURVE, N_NODES, POLICY, RuntimeConformance, RuntimeKit
from tests.integration.daemon_scripts import SLOW, trainer_spec, write_script
from tests.support import hurried
from tests.support.repeating import repeated_equal
from tests.support.site import Site, opened_site

HURRIED = str(Path(hurried.__file__).resolve())
SGD = Path(trainers.examples.__file__).parent / "command_sgd.py"
HOROVOD_SGD, MPI_SGD = SGD.with_name("horovod_sgd.py"), SGD.with_name("mpi_sgd.py")
BATCH = 24


# One for all of them: agents stay warm between the tests (hold_idle_s).
site = opened_site(n_nodes=N_NODES, policy=POLICY)


class TorchKit:
    """A script of ``bftrainer.elastic``: ten steps an epoch."""

    restarts = False
    workers_per_node = 1

    def spec(self, directory: Path, n_steps: int) -> TrainerSpec:
        # As much work as the other's, shared by the nodes: decisions see that it scales.
        text = SLOW.replace('print("worker"', 'print("pid"')
        pause = "0 if os.path.exists('hurry') else 0.24 * run.local_size / run.size"
        text = text.replace("time.sleep(0.05)", f"time.sleep({pause})")
        assert "run.size" in text
        return self._spec(directory, text, epochs=n_steps // 10)

    def failing_spec(self, directory: Path) -> TrainerSpec:
        return self._spec(directory, "raise RuntimeError('no data here')\n", epochs=1, n_max=1)

    def _spec(self, directory: Path, text: str, *, epochs: int, n_max: int = 3) -> TrainerSpec:
        return trainer_spec(
            directory,
            text,
            name="torch",
            n_max=n_max,
            workers_per_node=self.workers_per_node,
            epochs=epochs,
            curve=CURVE,
            checkpoint_interval_s=1.0,
            environment=(("OMP_NUM_THREADS", "1"),),
        )

    def assert_exact(self, directory: Path, n_steps: int, view: TrainerView) -> None:
        assert json.loads((directory / "done.json").read_text()) == {"steps": n_steps}
        assert view.record.progress.samples == n_steps * BATCH


class TorchTeamKit(TorchKit):
    """The same with two workers on every node."""

    workers_per_node = 2


class CommandKit:
    """The example program, with a checkpoint a second."""

    restarts = True

    def spec(self, directory: Path, n_steps: int) -> TrainerSpec:
        argv = ("--steps", str(n_steps), "--batch", str(BATCH), "--pause", "0.24")
        return self._spec(directory, HURRIED, str(SGD), *argv)

    def failing_spec(self, directory: Path) -> TrainerSpec:
        return self._spec(directory, "-c", "print('no data here'); raise SystemExit(3)", n_max=1)

    def _spec(self, directory: Path, *args: str, n_max: int = 3) -> TrainerSpec:
        return trainer_spec(
            directory,
            "",
            name="command",
            runtime="command",
            contract=CheckpointContract(grace_s=20.0),
            script=sys.executable,
            args=args,
            interpreter="",
            n_max=n_max,
            epochs=None,
            curve=CURVE,
            checkpoint_interval_s=1.0,
        )

    def assert_exact(self, directory: Path, n_steps: int, view: TrainerView) -> None:
        state = json.loads((directory / "checkpoints" / "latest" / "sgd.json").read_text())
        n_samples = n_steps * BATCH
        assert (state["step"], state["samples"]) == (n_steps, n_samples)
        assert state["index_sum"] == n_samples * (n_samples - 1) // 2
        assert view.record.progress.samples == n_samples


class HorovodKit:
    """The example script."""

    restarts = False

    def spec(self, directory: Path, n_steps: int) -> TrainerSpec:
        argv = ("--steps", str(n_steps), "--batch", str(BATCH), "--pause", "0.24")
        more = ("--commit-every", "4", "--out", str(directory / "done.json"))
        return self._spec(directory, str(HOROVOD_SGD), *argv, *more)

    def failing_spec(self, directory: Path) -> TrainerSpec:
        text = "import horovod.torch as hvd\nhvd.init()\nraise RuntimeError('no data here')\n"
        spec = self._spec(directory, n_max=1)
        return dataclasses.replace(spec, script=str(write_script(directory, text)))

    def _spec(self, directory: Path, *args: str, n_max: int = 3) -> TrainerSpec:
        return trainer_spec(
            directory,
            "",
            name="horovod",
            runtime="horovod",
            script=HURRIED,
            args=args,
            n_max=n_max,
            epochs=None,
            curve=CURVE,
            checkpoint_interval_s=1.0,
            environment=(("OMP_NUM_THREADS", "1"),),
        )

    def assert_exact(self, directory: Path, n_steps: int, view: TrainerView) -> None:
        n_samples = n_steps * BATCH
        assert json.loads((directory / "done.json").read_text()) == {
            "step": n_steps,
            "samples": n_samples,
            "index_sum": n_samples * (n_samples - 1) // 2,
        }
        assert (view.record.progress.step, view.record.progress.samples) == (n_steps, n_samples)


class MpiKit:
    """The example over MPI, resized in place."""

    restarts = False

    def spec(self, directory: Path, n_steps: int) -> TrainerSpec:
        argv = ("--steps", str(n_steps), "--batch", str(BATCH), "--pause", "0.24")
        return self._spec(directory, str(MPI_SGD), *argv, "--out", str(directory / "done.json"))

    def failing_spec(self, directory: Path) -> TrainerSpec:
        spec = self._spec(directory, n_max=1)
        script = write_script(directory, "raise RuntimeError('no data here')\n")
        return dataclasses.replace(spec, script=str(script))

    def _spec(self, directory: Path, *args: str, **changes: object) -> TrainerSpec:
        fields: dict[str, object] = {
            "name": "mpi", "runtime": "mpi", "script": HURRIED, "args": args, "n_max": 3,
            "epochs": None, "curve": CURVE, "checkpoint_interval_s": 1.0,
        }  # fmt: skip
        return trainer_spec(directory, "", **{**fields, **changes})

    def assert_exact(self, directory: Path, n_steps: int, view: TrainerView) -> None:
        done = json.loads((directory / "done.json").read_text())
        n_samples = n_steps * BATCH
        assert (done["step"], done["samples"]) == (n_steps, n_samples)
        assert done["index_sum"] == n_samples * (n_samples - 1) // 2
        assert view.record.progress.samples == n_samples


@pytest.mark.long
class TestMpi(RuntimeConformance):
    """Runtime ``mpi``."""

    @pytest.fixture
    def kit(self) -> RuntimeKit:
        """The one under test."""
        return MpiKit()

    def test_it_says_what_a_loss_costs(self, site: Site, tmp_path: Path) -> None:
        trainer = site.client.submit(MpiKit().spec(tmp_path, 10**6)).record.trainer_id
        assert "in flight" in " ".join(site.client.explain(trainer).sentences)


@pytest.mark.long
class TestCommand(RuntimeConformance):
    """Runtime ``command``."""

    @pytest.fixture
    def kit(self) -> RuntimeKit:
        """The one under test."""
        return CommandKit()


class TestTorch(RuntimeConformance):
    """Runtime ``torch``."""

    @pytest.fixture
    def kit(self) -> RuntimeKit:
        """The one under test."""
        return TorchKit()


@pytest.mark.long
class TestTorchTeams(RuntimeConformance):
    """Runtime ``torch`` with several workers per node."""

    @pytest.fixture
    def kit(self) -> RuntimeKit:
        """The one under test."""
        return TorchTeamKit()


@pytest.mark.skipif(find_spec("horovod") is None, reason="make horovod builds it")
class TestHorovod(RuntimeConformance):
    """Runtime ``horovod``; what its own tests show in less time is for the long ones."""

    @pytest.fixture
    def kit(self) -> RuntimeKit:
        """The one under test."""
        return HorovodKit()

    @pytest.mark.long
    def test_nodes_are_taken_without_notice_one_or_all_and_it_resumes(
        self, site: Site, kit: RuntimeKit, tmp_path: Path
    ) -> None:
        super().test_nodes_are_taken_without_notice_one_or_all_and_it_resumes(site, kit, tmp_path)


def test_every_decision_and_rescale_of_them_can_be_taken_again(site: Site) -> None:
    entries = site.sidecar.entries(KIND)
    assert entries
    assert [a for a in take_again(entries) if not a.is_equal] == []
    assert repeated_equal(site.sidecar.entries())
