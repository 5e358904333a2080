"""Queries in a Spark session, and Spark programs that tests start.

Owns: which helpers there are. Does not own: the session (tests/spark/conftest.py), jobs that are killed
(`support.kills`).
"""
