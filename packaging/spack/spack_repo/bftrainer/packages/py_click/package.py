from spack_repo.builtin.packages.py_click.package import PyClick as Builtin

from spack.package import *


class PyClick(Builtin):
    """A later version than Spack's own packages have had so far."""

    version("8.5.1", sha256="9bbfada76703fd1d784b83eea012e3e8c6a001a876543ef104fa56aaaeb072b4")
