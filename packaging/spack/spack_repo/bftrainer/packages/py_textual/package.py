from spack_repo.builtin.packages.py_textual.package import PyTextual as Builtin

from spack.package import *


class PyTextual(Builtin):
    """A later version than Spack's own packages have had so far."""

    version("8.2.8", sha256="3f106a9fbc73e39dd266c9712432087de78a6d644084c7c241d6a25c3169115b")

    depends_on("py-rich@14.2:", when="@8:", type=("build", "run"))
    depends_on("py-pygments@2.19.2:2", when="@8:", type=("build", "run"))
