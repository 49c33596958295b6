"""``python -m lmr`` is the command ``lmr``."""

from __future__ import annotations

import sys

from lmr.cli import main

if __name__ == "__main__":
    sys.exit(main())
