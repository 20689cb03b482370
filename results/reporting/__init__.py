"""report.html: what a run has made, in one file that opens without a network."""

from results.reporting.gather import Facts, gather
from results.reporting.page import NAME, ReportProblem, write

__all__ = ["NAME", "Facts", "ReportProblem", "gather", "write"]
