"""Background materialization: when a state gets a new snapshot, and which loop makes it.

Owns: nothing itself. The decision is in `policy`, the loop in `periodic`, its use by the state server in `server`, by
an embedded state in `embedded`. Does not own: what a materialization does (the core).
"""
