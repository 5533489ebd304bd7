"""A filelock that is new enough: Spack's own packages had 3.25 when this was written."""

from spack.package import depends_on, license, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyFilelock(PythonPackage):
    """A platform-independent file lock for Python."""

    pypi = "filelock/filelock-3.32.7.tar.gz"

    license("MIT")

    version("3.32.7", sha256="37b8a3d9811b0f9aef7e5ec5c71bb320de52df51e6ca9bcd6f5ad81187660da7")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatch-vcs@0.5:", type="build")
    depends_on("py-hatchling@1.29:", type="build")
