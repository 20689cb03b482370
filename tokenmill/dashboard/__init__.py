"""`tokenmill dashboard`: the run in a browser, and its metrics for Prometheus.

The page is read-only unless TOKENMILL_DASHBOARD_TOKEN is set; it loads nothing from anywhere else, and keeps
what was over time in this process' memory alone.
"""

from tokenmill.dashboard.serving import serve

__all__ = ["serve"]
