"""The Spark program of the campaign: `python campaign_job.py plan.json`.

Owns: nothing; the program is that of the kill tests (`kill_job`), its queries are the campaign's (`campaign_kinds`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kill_job
from campaign_kinds import KINDS

if __name__ == "__main__":
    kill_job.main(json.loads(Path(sys.argv[1]).read_text()), KINDS)
