"""Helpers of the tests, of benchmarks and of programs that tests start.

Owns: which helpers there are. Does not own: fixtures (`conftest.py`), tests.
"""
