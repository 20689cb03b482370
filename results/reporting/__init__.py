"""report.html: what a run has made, in one file that opens without a network."""

from results.reporting.gather import Facts, gather
from results.reporting.page import ReportProblem, write

__all__ = ["Facts", "ReportProblem", "gather", "write"]
