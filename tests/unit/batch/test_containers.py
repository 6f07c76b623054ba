"""Images, mounts, the choice of a runtime, and the command lines of each, after their documents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.admission import check_spec, in_site
from bftrainer.batch.containers.choice import (
    APPTAINER,
    BUBBLEWRAP,
    CHARLIECLOUD,
    EACH,
    ENROOT,
    PODMAN,
    PREFERENCES,
    SINGULARITY,
    choose,
    form_of,
)
from bftrainer.batch.containers.entry import (
    environment_of,
    make_places,
    mounts_for,
    signal_in,
    variables_of,
)
from bftrainer.batch.containers.runtime import (
    ContainerCall,
    ContainerRuntime,
    GpuVendor,
    ImageForm,
)
from bftrainer.cli.container import fitting, mounts_with
from bftrainer.cli.environment import ALL
from bftrainer.cli.option_values import parse_image, parse_mounts
from bftrainer.fleet.runtimes.base import template_of
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.container import (
    RUNTIMES,
    BindMount,
    ContainerOrder,
    covering,
    mounts_of,
    outside,
)
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import why_not_started
from bftrainer.model.trainer import TrainerSpec
from trainers.agent.preambles import placed

CALL = ContainerCall(
    program="/opt/bin/run",
    image="/images/torch.sif",
    argv=("/usr/bin/python3", "template.py", "9"),
    mounts=(
        BindMount(source="/home/ada", target="/home/ada"),
        BindMount(source="/data", target="/mnt", is_read_only=True),
    ),
    variables=("BFT_RANK", "TOKEN"),
    workdir="/home/ada",
    gpus=GpuVendor.NVIDIA,
    last_descriptor=9,
)
ENVIRON = {"TOKEN": "secret", "BFT_RANK": "3", "PATH": "/host/bin"}


def _call(**changes: object) -> ContainerCall:
    from dataclasses import replace

    return replace(CALL, **changes)  # type: ignore[arg-type]


def test_apptainer_as_in_its_guide() -> None:
    """Apptainer 1.3 and SingularityCE 4.1: exec, --nv, --pwd, --bind SRC:DST[:ro]."""
    for runtime in (APPTAINER, SINGULARITY):
        assert runtime.command(CALL) == [
            *("/opt/bin/run", "exec", "--nv", "--pwd", "/home/ada"),
            *("--bind", "/home/ada:/home/ada", "--bind", "/data:/mnt:ro"),
            *("/images/torch.sif", "/usr/bin/python3", "template.py", "9"),
        ]
        assert "--rocm" in runtime.command(_call(gpus=GpuVendor.AMD))
    assert APPTAINER.environment(CALL, ENVIRON)["APPTAINERENV_TOKEN"] == "secret"  # noqa: S105
    assert "APPTAINERENV_PATH" not in APPTAINER.environment(CALL, ENVIRON)
    assert SINGULARITY.environment(CALL, ENVIRON)["SINGULARITYENV_BFT_RANK"] == "3"


def test_podman_as_in_its_manual() -> None:
    """podman-run(1) of 4.3: --preserve-fds counts from 3, --env NAME takes our value."""
    words = PODMAN.command(_call(image="docker://nvcr.io/nvidia/pytorch:25.01-py3"))
    for pair in (
        ("--volume", "/data:/mnt:ro"),
        ("--env", "TOKEN"),
        ("--workdir", "/home/ada"),
        ("--device", "nvidia.com/gpu=all"),
    ):
        at = [words[k : k + 2] for k in range(len(words))].index(list(pair))
        assert at > 0
    for flag in ("--pid=host", "--network=host", "--ipc=host", "--userns=keep-id", "--rm"):
        assert flag in words
    assert "--preserve-fds=7" in words
    assert words[-4:] == ["nvcr.io/nvidia/pytorch:25.01-py3", *CALL.argv]
    assert "--userns=keep-id" not in PODMAN.command(_call(is_root=True))
    assert PODMAN.command(_call(image="/images/root"))[-5:-3] == ["--rootfs", "/images/root"]


def test_charliecloud_as_in_its_manual() -> None:
    """ch-run(1) of 0.31: --bind SRC:DST, no read-only mounts, the program after --."""
    words = CHARLIECLOUD.command(_call(mounts=CALL.mounts[:1]))
    rest = ["--cd", "/home/ada", "--bind", "/home/ada:/home/ada", "/images/torch.sif", "--"]
    assert words == ["/opt/bin/run", *rest, *CALL.argv]
    there = _call(mounts=(), temporary="/tmp/bft-1")
    assert "--set-env=TMPDIR=/tmp/bft-1" in CHARLIECLOUD.command(there)
    assert "TMPDIR" not in CHARLIECLOUD.environment(there, {"TMPDIR": "/tmp/bft-1"})
    later = _call(mounts=CALL.mounts[:1], help="  -W, --write-fake  overlay read-write tmpfs")
    assert CHARLIECLOUD.command(later) == ["/opt/bin/run", "--write-fake", *rest, *CALL.argv]
    assert CHARLIECLOUD.fault(CALL) == "ch-run cannot mount /data read-only"
    assert "/host" not in CHARLIECLOUD.environment(CALL, ENVIRON)["PATH"]
    kept = CHARLIECLOUD.environment(_call(variables=("PATH",)), ENVIRON)
    assert kept["PATH"] == "/host/bin"


def test_bubblewrap_as_in_its_manual() -> None:
    """bwrap(1) of 0.8: operations in order, the root read-only at the end."""
    words = BUBBLEWRAP.command(_call(image="/images/root"))
    assert words[:5] == ["/opt/bin/run", "--die-with-parent", "--bind", "/images/root", "/"]
    assert (
        words[-14:]
        == [
            *("--bind", "/home/ada", "/home/ada", "--ro-bind", "/data", "/mnt"),
            *("--remount-ro", "/", "--chdir", "/home/ada", "--", *CALL.argv),
        ][-14:]
    )


def test_enroot_as_in_its_documents() -> None:
    """Enroot 3.5, doc/cmd/start.md: fstab fields separated by colons, --env KEY."""
    words = ENROOT.command(_call(image="/images/torch.sqsh"))
    assert words == [
        *("/opt/bin/run", "start"),
        *("--mount", "/home/ada:/home/ada:none:x-create=auto,rbind"),
        *("--mount", "/data:/mnt:none:x-create=auto,rbind,ro"),
        *("--env", "BFT_RANK", "--env", "TOKEN", "--env", "NVIDIA_VISIBLE_DEVICES"),
        *("/images/torch.sqsh", "/bin/sh", "-c", 'cd -- "$0" && exec "$@"', "/home/ada"),
        *CALL.argv,
    ]
    assert ENROOT.environment(CALL, ENVIRON)["NVIDIA_VISIBLE_DEVICES"] == "all"


@pytest.mark.parametrize("runtime", EACH, ids=lambda runtime: str(runtime.name))
def test_no_runtime_writes_a_value_on_its_command_line(runtime: ContainerRuntime) -> None:
    assert not any("secret" in word for word in runtime.command(CALL))


def _having(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"/bin/{name}" if name in names else None


@pytest.mark.parametrize(
    ("image", "is_directory", "there", "chosen"),
    [
        ("docker://x/y", False, ("podman", "apptainer"), "apptainer"),
        ("docker://x/y", False, ("podman",), "podman"),
        ("/i/x.sif", False, ("singularity", "podman"), "singularity"),
        ("/i/x.sqsh", False, ("apptainer", "enroot"), "enroot"),
        ("/i/x", True, ("ch-run", "bwrap"), "charliecloud"),
        ("/i/x", True, ("bwrap",), "bwrap"),
        ("oras://x", False, ("apptainer",), "apptainer"),
    ],
)
def test_the_runtime_is_chosen_by_the_machine_and_the_image(
    image: str, is_directory: bool, there: tuple[str, ...], chosen: str
) -> None:
    found = choose("auto", form_of(image, is_directory=is_directory), _having(*there), "n1")
    assert found.runtime.name == chosen


def test_a_machine_without_a_runtime_says_what_it_looked_for() -> None:
    with pytest.raises(UsageError, match="n1 has no apptainer nor singularity in its PATH"):
        choose("auto", ImageForm.SIF, _having("bwrap"), "n1")
    with pytest.raises(UsageError, match="bwrap does not start a SIF file"):
        choose("bwrap", ImageForm.SIF, _having("bwrap"), "n1")
    assert tuple(runtime.name for runtime in EACH) == RUNTIMES
    for form, runtimes in PREFERENCES.items():
        assert all(form in runtime.forms for runtime in runtimes)


def test_mounts_are_read_and_said_again() -> None:
    assert parse_mounts("/a:/b:ro, /c,/d:/e") == "/a:/b:ro,/c:/c,/d:/e"
    assert mounts_of("/a:/b:rw")[0].words == "/a:/b"
    for wrong in ("/a:b", "/a:/b:/c:ro", "/a:/"):
        with pytest.raises(UsageError, match="BFT-1080"):
            parse_mounts(wrong)
    assert mounts_with("/a:/b", "/venv") == "/venv:/venv,/a:/b"


def test_a_mount_that_another_shows_is_left_out() -> None:
    seen = covering(mounts_of("/w/sub,/w,/w/ro:/w/ro:ro,/w/other:/w/x,/a:/b,/c:/b"))
    assert [mount.words for mount in seen] == ["/c:/b", "/w:/w", "/w/ro:/w/ro:ro", "/w/other:/w/x"]


def test_mounts_outside_the_places_of_a_site_are_named() -> None:
    wrong = outside(mounts_of("/lustre/a,/lustrex,/lustre/../etc:/e"), ("/lustre",))
    assert [mount.source for mount in wrong] == ["/lustrex", "/lustre/../etc"]


def test_an_image_is_a_path_or_named_with_its_registry(tmp_path: Path) -> None:
    assert parse_image("docker://x/y:1") == "docker://x/y:1"
    assert parse_image("later.sif") == str(Path.cwd() / "later.sif")
    for wrong in ("nvcr.io/nvidia/pytorch:25.01-py3", "pytorch", "docker://"):
        with pytest.raises(UsageError, match="BFT-1080"):
            parse_image(wrong)


def test_no_directory_of_the_system_is_mounted_by_itself(tmp_path: Path) -> None:
    order = ContainerOrder(
        image="/i", directories=("/usr/bin", "/", str(tmp_path)), made=(str(tmp_path / "new"),)
    )
    targets = {mount.target for mount in mounts_for(order, {"TMPDIR": "/tmp/bft-1"}, ("python",))}
    assert "/tmp" in targets
    assert not targets & {"/", "/usr/bin"}
    assert (tmp_path / "new").is_dir()


def test_what_is_true_of_the_host_alone_stays_outside() -> None:
    environ = {"PYTHONPATH": "/p", "LD_PRELOAD": "/l", "HOME": "/h", "SLURM_JOB_ID": "1"}
    assert environment_of(environ, ("LD_PRELOAD",)).keys() == environ.keys() - {"PYTHONPATH"}
    assert variables_of(environ, ("HOME",)) == ("HOME", "SLURM_JOB_ID")
    pairs = (("PATH", "/b"), ("PYTHONPATH", "/p"), ("A", "1"))
    assert fitting(pairs, ((ALL, ""), ("PYTHONPATH", "/p"))) == pairs[1:]


def test_a_status_above_128_is_a_signal() -> None:
    assert [signal_in(status) for status in (143, -9, 137, 85, 255, 128)] == [15, 9, 9, 0, 0, 0]


def test_why_an_image_did_not_start() -> None:
    begun = "bftrainer: container /i.sif by apptainer (/bin/apptainer)\n"
    assert why_not_started(f"{begun}FATAL: no image\n", 255, "/p") == (
        "BFT-1082: The container /i.sif by apptainer (/bin/apptainer) ended with status 255 before"
        " its program began: FATAL: no image"
    )
    told = "bftrainer: BFT-1081: n1 has no apptainer. Load it."
    assert why_not_started(f"{told}\n", 126, "/p") == told.removeprefix("bftrainer: ")


def _config(**more: object) -> WorkerConfig:
    return WorkerConfig(
        trainer_id="t1", worker_id="w1", node="n1", script="/home/ada/train.py", cwd="/home/ada",
        checkpoint_dir="/home/ada/c", log_path="/home/ada/c/logs/w1.log",
        environment=(("TOKEN", "secret"),), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_agent_ends_the_preamble_in_the_container(tmp_path: Path) -> None:
    whole = _config(preamble="module load apptainer", container="/i.sif", container_mounts="/d:/d")
    rest, preamble = placed(whole, tmp_path)
    text = Path(preamble.path).read_text()
    assert text.startswith("module load apptainer\nexec ")
    assert text.endswith('"$@"\n')
    assert "secret" not in text
    assert preamble.is_container
    assert rest.container == rest.preamble == rest.container_mounts == ""
    assert "container" not in to_body(rest)
    again = placed(_config(container="/i.sif"), tmp_path)[1]
    assert again.path != preamble.path  # another template
    assert placed(_config(container="/i.sif"), tmp_path)[1] == again


def test_a_trainer_in_a_container_has_no_template_of_the_host() -> None:
    spec = TrainerSpec(name="t", user="u", script="/s.py", interpreter=sys.executable)
    assert template_of(spec) == sys.executable
    own = TrainerSpec(
        name="t", user="u", script="/s.py", interpreter=sys.executable, container="/i.sif"
    )
    assert template_of(own) == ""
    check_spec(own)


@pytest.mark.parametrize(
    "fields",
    [
        {"container": "i.sif"},
        {"container": "docker://"},
        {"container_mounts": "/a:/b"},
        {"container": "/i.sif", "container_mounts": "a:/b"},
        {"container": "/i.sif", "container_runtime": "docker"},
    ],
)
def test_a_malformed_container_is_refused(fields: dict[str, str]) -> None:
    spec = TrainerSpec(name="t", user="u", script="/s.py", interpreter="/python", **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="BFT-1080"):
        check_spec(spec)


def test_a_site_adds_its_mounts_and_names_its_runtime() -> None:
    spec = TrainerSpec(
        name="t", user="u", script="/s.py", container="/i.sif", container_mounts="/lustre/a:/data"
    )
    site = {"runtime": "apptainer", "mounts": "/scratch:/scratch,/x:/data"}
    placed_there = in_site(spec, **site, sources=("/lustre",))
    assert placed_there.container_runtime == "apptainer"
    assert placed_there.container_mounts == "/scratch:/scratch,/lustre/a:/data"
    with pytest.raises(UsageError, match=r"BFT-1083.*/lustre/a"):
        in_site(spec, **site, sources=("/home",))
    own = replace(spec, container_runtime="podman")
    assert in_site(own, **site, sources=None).container_runtime == "podman"
    outside_any = replace(spec, container="", container_mounts="")
    assert in_site(outside_any, **site, sources=()) is outside_any


def test_places_are_made_in_an_image_but_never_behind_a_link(tmp_path: Path) -> None:
    image, outside_it = tmp_path / "image", tmp_path / "outside"
    image.mkdir()
    outside_it.mkdir()
    (image / "link").symlink_to(outside_it)
    make_places(image, mounts_of("/a/b,/c:/link/d"))
    assert (image / "a" / "b").is_dir()
    assert list(outside_it.iterdir()) == []
