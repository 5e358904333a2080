"""Background materialization: when a state gets a new snapshot, and which loop makes it.

Owns: the public names. The decision is in `policy`, the loop in `periodic`, its use by an embedded state in `embedded`.
Does not own: what a materialization does (the core), the loop of a state server (Rust).
"""

from __future__ import annotations

from fastchangelog.materialization.periodic import PeriodicMaterializer, Run, Target
from fastchangelog.materialization.policy import MaterializationPolicy

__all__ = ["MaterializationPolicy", "PeriodicMaterializer", "Run", "Target"]
