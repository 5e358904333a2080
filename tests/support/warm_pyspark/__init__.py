"""Parts of PySpark as tests start them (tests/conftest.py)."""
