"""`python -m driver`, and the `gpu-dra` command."""

from __future__ import annotations

import sys

from driver.cli import main

if __name__ == "__main__":
    sys.exit(main())
