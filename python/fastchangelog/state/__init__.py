"""Collections of keyed state, one module for each kind: values, maps, lists, aggregates, timers.

Owns: nothing itself. A module has the kind's calls in a session and both of its faces: that of processors, which take
many keys at once, in Arrow, and that of embedded states, which also are mappings.
Does not own: how entries are stored (the core), opening a state (`embedded`), running a processor (`vectorised`).
"""
