"""Memory first: the order and the addresses with the lowest peak. No torch; imports only the core."""
