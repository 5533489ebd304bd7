"""Spack's recipe; docs/packages.md says how it is used."""

import os

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcext(PythonPackage):
    """Share GPUs among deep-learning jobs inside Slurm or LSF, and lose no work doing it."""

    # "make sdist" makes the archive; it is looked for where spack is run.
    manual_download = True

    license("Apache-2.0")

    version("0.2.0")

    variant("admin", default=False, description="Manual pages in what hpcext-admin installs")
    variant("torch", default=False, description="Sessions for PyTorch")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-numpy@1.23:", type=("build", "run"))
    depends_on("py-filelock@3.30:", type=("build", "run"))
    depends_on("py-msgspec@0.18:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scipy@1.10:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-nvidia-ml-py@12:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-docutils@0.20:", type=("build", "run"), when="+admin")
    depends_on("py-torch@2.4:", type=("build", "run"), when="+torch")

    # What "spack install --test=root" does not import: each needs a package that users choose.
    skip_modules = (
        "hpcext.integrations.submitit",
        "hpcext.training.jax",
        "hpcext.training.keras",
        "hpcext.training.lightning",
        "hpcext.training.tensorflow",
        "hpcext.training.torch",
    )

    def url_for_version(self, version):
        """Return the address of the archive in the directory where spack runs."""
        return f"file://{os.getcwd()}/hpcext-{version}.tar.gz"
