"""``python -m hpcext``."""

import sys

from hpcext.cli.main import main

sys.exit(main())
