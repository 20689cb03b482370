"""Training files out: the answers in the shapes that trainers read, written as a whole or not at all."""

from results.exports.options import Format, Options
from results.exports.run import Outcome, export

__all__ = ["Format", "Options", "Outcome", "export"]
