"""The ledger: caps, spent, reservations and leases, kept in Redis by atomic Lua scripts."""
