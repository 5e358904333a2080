"""Checks the import contracts of pyproject.toml against the sources (not against an installed wheel).

Owns: nothing but the path to the sources. Does not own: the contracts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from importlinter.cli import lint_imports

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
raise SystemExit(lint_imports(cache_dir=None, no_cache=True, no_logo=True))
