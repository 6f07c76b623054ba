from spack_repo.builtin.packages.py_optuna.package import PyOptuna as Builtin

from spack.package import *


class PyOptuna(Builtin):
    """A later version than Spack's own packages have had so far."""

    version("5.0.0", sha256="358bb878b7b1e20e90dc944ac4261796dd3d5c2b7860aa960a08fc10e0b5beff")
