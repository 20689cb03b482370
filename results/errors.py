"""What can go wrong with the files, as sentences for the person who runs the job.

ResultsError
├── BadFolder (2)      the output folder is a file, another run's, or its state is damaged
├── FolderTaken (4)    another collector writes into it
├── NotWritable (5)    a folder or file may not be written
├── DiskFault (5)      the disk is full or fails
└── FileChanged (5)    a result file was deleted, replaced or written by something else
"""

from budget.errors import OutsideFault, Problem, Refused, UserProblem


class ResultsError(Problem):
    """The root of what this package raises."""


class BadFolder(ResultsError, UserProblem):
    """The output folder is not one that this run can use."""


class FolderTaken(ResultsError, Refused):
    """Another process collects into the folder."""


class NotWritable(ResultsError, OutsideFault):
    """This user may not write there."""


class DiskFault(ResultsError, OutsideFault):
    """The disk did not take what was written, or does not give what it holds."""


class FileChanged(ResultsError, OutsideFault):
    """Something else deleted, replaced or wrote a file while the collector had it open."""


class Damaged(ResultsError):
    """An entry of the results stream that is not what a worker writes; it is kept aside, never fatal."""
