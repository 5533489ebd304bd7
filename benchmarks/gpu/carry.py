"""Collect wheels of what hpcext needs, to be carried to a machine that has no network.

They go into ``build/gpu-wheels``, for several releases of Python on x86-64. NumPy and SciPy are
left out unless ``--with`` names them: they are large, and mostly there where PyTorch is.

Run: ``python benchmarks/gpu/carry.py [--python 3.12 ...] [--with scipy]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import needs

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
LARGE = ("numpy", "scipy")
PLATFORMS = [
    f"manylinux{age}_x86_64"
    for age in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
]


def main() -> int:
    """Collect, and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=list(PYTHONS), metavar="3.N")
    parser.add_argument("--with", nargs="+", default=[], dest="more", choices=LARGE)
    args = parser.parse_args()
    needs.WHEELS.mkdir(parents=True, exist_ok=True)
    for python in args.python:
        version = tuple(int(part) for part in python.split("."))
        names = [
            f"{need.name}>={need.least}"
            for need in needs.needs()
            if (need.name not in LARGE or need.name in args.more)
            and not (need.below and version >= need.below)
        ]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, "--dest", str(needs.WHEELS)]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, *names, *needs.OF_RICH], check=True)
    wheels = list(needs.WHEELS.glob("*.whl"))
    size = sum(each.stat().st_size for each in wheels)
    print(f"{len(wheels)} wheels, {size / 1e6:.1f} MB, in {needs.WHEELS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
