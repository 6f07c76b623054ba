from spack_repo.builtin.packages.py_starlette.package import PyStarlette as Builtin

from spack.package import *


class PyStarlette(Builtin):
    """A later version than Spack's own packages have had so far."""

    version("1.10.0", sha256="b8399098d4c1e3522734f7235dc79b1fc967f96cf139c81e0fa30479e0685f9b")

    depends_on("python@3.11:", when="@1.10:", type=("build", "run"))
    depends_on("py-typing-extensions@4.10:", when="@1.10: ^python@:3.12", type=("build", "run"))
