"""Garbage collection: finds the objects of a state root that no checkpoint needs, and deletes them.

Owns: the list of its parts: `plan` decides, `collector` reads and deletes, `known` has the locations of checkpoints,
`checkpoint_log` the roots of embedded states, `report` the result; `background` runs sweeps beside other work, `pace`
bounds them.
Does not own: Spark's checkpoints (`checkpoints.handles`), the command (`cli.sweep`), who sweeps in the background
(`server.sweeper`, `embedded.places`).
"""
