"""The command line, the run file, the run on one machine, and what people see of it."""

__version__ = "0.1.0"
