"""The fast clock, the ledger of live memory, and a replay of the caching allocator; see the modules."""
