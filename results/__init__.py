"""Completions out: the results stream becomes files that are fsynced, verified and exported."""
