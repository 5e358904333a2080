"""Servers of S3 and Azure, buckets behind a proxy with faults, and their logs.

Owns: which helpers there are. Does not own: fixtures and tests (tests/stores).
"""
