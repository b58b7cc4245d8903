"""Texts that would betray the host or the moment in an observation."""

from __future__ import annotations

import datetime
import os
import socket
import sys

MIN_LENGTH = 5  # shorter ones would be met by chance


def host_words() -> list[str]:
    """Host name, paths of the checkout, interpreter and home, and today's date."""
    today = datetime.datetime.now(datetime.UTC)
    paths = {os.getcwd(), sys.prefix, sys.base_prefix, os.path.expanduser("~"), "/var/tmp"}
    words = {socket.gethostname(), today.strftime("%Y-%m-%d"), today.strftime("%b %d %H"), *paths}
    return sorted(word for word in words if len(word) >= MIN_LENGTH)
