"""`python -m fastchangelog`: the same as the command `fastchangelog`. Owns nothing else."""

from __future__ import annotations

import sys

from fastchangelog.cli import main

if __name__ == "__main__":
    sys.exit(main())
