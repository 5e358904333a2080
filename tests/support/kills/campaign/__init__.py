"""The campaign: `python -m support.kills.campaign`.

Owns: nothing itself. Does not own: single kills of a test (`support.kills`).
"""
