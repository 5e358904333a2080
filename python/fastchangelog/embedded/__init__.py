"""Embedded state: keyed state inside the program's own process, without Spark.

Owns: nothing itself. `state` opens a state and takes checkpoints.
Does not own: the collections (`fastchangelog.state`), any behaviour of the state (the core, `rust/core/src/embedded`).

A change is visible at once to all readers of the same object. It is durable when `checkpoint` has returned: the net
effect since the last checkpoint goes to the log in the object store, and the next `open_state` of that folder finds it.
Changes that no checkpoint holds are lost when the program ends. Everything on the local disk is a cache.

>>> import fastchangelog as fc
>>> with fc.open_state("memory://docs/state", name="profiles") as st:
...     visits = st.value_state("visits", key="string", value="long")
...     visits["ann"] = 1
...     visits.put_many(["bob", "cid"], [2, 3])
...     visits["ann"], "bob" in visits, visits.get_many(["cid", "dan"]).to_pylist()
(1, True, [3, None])
>>> with fc.open_state("memory://docs/state", name="profiles") as st:
...     visits = st.value_state("visits", key="string", value="long")
...     for batch in visits.scan(start="b"):
...         print(batch.to_pydict())
{'key': ['bob', 'cid'], 'value': [2, 3]}
"""
