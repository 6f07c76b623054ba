"""bftrainer from the sdist in dist/ (make dist). Its dependencies are those of setup.cfg."""

import hashlib
from pathlib import Path

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

SDIST = Path(__file__).parents[6] / "dist" / "bftrainer-0.1.0.tar.gz"
# The sdist contains this recipe, which therefore cannot contain its hash.
SHA256 = hashlib.sha256(SDIST.read_bytes() if SDIST.exists() else b"").hexdigest()


class PyBftrainer(PythonPackage):
    """Trains neural networks on the idle nodes of a supercomputer, as a sidecar to Slurm or LSF."""

    url = SDIST.as_uri()
    license("Apache-2.0")

    version("0.1.0", sha256=SHA256)

    variant("torch", default=False, description="What trains, too")
    variant("mpi", default=False, description="Trainers that use MPI")
    variant("study", default=False, description="Studies of hyper-parameters")

    depends_on("py-setuptools@70.1:", type="build")
    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-numpy@2:")
        depends_on("py-highspy@1.10:")
        depends_on("py-pyzmq@26:")
        depends_on("py-sqlalchemy@2:")
        depends_on("py-click@8.3.3:")
        depends_on("py-pydantic@2.10:")
        depends_on("py-ruamel-yaml@0.18:")
        depends_on("py-starlette@1.3.1:")
        depends_on("py-uvicorn@0.30:")
        depends_on("py-h11@0.16:")
        depends_on("py-rich@14.3:")
        depends_on("py-textual@8.2:")
        depends_on("py-prometheus-client@0.20:")
        depends_on("py-jinja2@3.1.6:")
        depends_on("py-markupsafe@2.1:")
        depends_on("py-torch@2.10:", when="+torch")
        depends_on("py-mpi4py@4:", when="+mpi")
        depends_on("py-optuna@5:", when="+study")
        depends_on("py-matplotlib@3.9:", when="+study")

    def test_an_error_is_explained(self):
        """bftrainer help reads its own source."""
        Executable(self.prefix.bin.bftrainer)("help", "BFT-1310")
