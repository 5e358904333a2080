"""Data of Python, numpy, pandas and Arrow as Arrow arrays of declared types: the same values, or an error.

Owns: nothing itself. `typed` is what others use; `values`, `arrays` and `times` have the rule for what fits.
Does not own: how types are declared (`fastchangelog.schema`), what the arrays are for.
"""
