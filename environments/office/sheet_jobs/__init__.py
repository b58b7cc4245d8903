"""What runs inside the sandboxes: the agent's tools (tools.py) and the judge's look at the file (inspection.py).

Copied in as it stands, so it imports openpyxl, formulas, the standard library and itself only.
"""
