"""Prompts in: files of any shape become messages, token ids, and one RQ queue per dataset."""
