"""The programs ``hpcext`` (also ``python -m hpcext``), ``hpcext-admin`` and ``hpcext-broker``.

Importing their modules takes half a second, during which Ctrl-C must not show a traceback either:
the program ends with the status that :mod:`hpcext.cli.main` uses for it.
"""

import sys


def main() -> int:
    """Run ``hpcext``."""
    if sys.argv[1:3] == ["suspendable", "--prepare"]:
        # For hpcext-batch, whose script waits for us.
        from hpcext.cli import begin  # noqa: PLC0415

        return begin.main(sys.argv[3:])
    try:
        from hpcext.cli import main as program  # noqa: PLC0415
    except KeyboardInterrupt:
        return 130
    return program.main()


def admin() -> int:
    """Run ``hpcext-admin``."""
    try:
        from hpcext.cli import admin as program  # noqa: PLC0415
    except KeyboardInterrupt:
        return 130
    return program.main()


def broker() -> int:
    """Run ``hpcext-broker``."""
    try:
        from hpcext.cli import broker as program  # noqa: PLC0415
    except KeyboardInterrupt:
        return 130
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
