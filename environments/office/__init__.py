"""Spreadsheets: look up, enter, correct and calculate in real workbooks."""

from k3rl.environments.office.domain import OfficeDomain

__all__ = ["OfficeDomain"]
