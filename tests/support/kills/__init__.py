"""Spark jobs in processes of their own that are killed, and models of what they must answer.

Owns: which parts there are. Does not own: tests (`test_kills`, `test_processor_kills`), long runs (`campaign`).
"""
