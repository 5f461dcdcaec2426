"""Tests on servers and clusters, whose packages `make serve-test` installs; where they are not, none is collected."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("kserve") and importlib.util.find_spec("ray") else ["test_*.py"]
