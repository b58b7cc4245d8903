"""What runs inside the sandboxes: the agent's tools (tools.py), the judge's look at the file (inspection.py), and the
calculation of formulas on plain values (recalculate.py).

Copied in as it stands, so it imports openpyxl, formulas, the standard library and itself only.
"""
