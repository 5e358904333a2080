"""The Spark program of the campaign: `python -m support.kills.campaign.job plan.json`.

Owns: nothing; the program is that of the kill tests (`kills.job`), its queries are the campaign's (`kinds`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.kills.campaign.kinds import KINDS
from support.kills.job import main

if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), KINDS)
