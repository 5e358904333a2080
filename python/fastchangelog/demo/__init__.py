"""The demo: streams are replayed while everything is killed, and the result is compared row by row.

    plan       the request: queries, keys, aggregates (plain data)
    data       the inputs: real flights, a generated auction, or a folder of the user
    job        the Spark program, a process of its own that can be killed at any moment
    processes  finding and killing exactly what the demo started
    conduct    starts the job, kills parts of it, starts it again, and records what happened when
    compare    the final state against an independent computation
    report     lines for people
    main       wires them together

Owns: nothing itself. Does not own: performance measurements (`make bench`).
"""

from __future__ import annotations
