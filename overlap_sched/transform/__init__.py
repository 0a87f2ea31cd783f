"""Rewrites of a problem's collectives: what they are, what they make of it, and which of them pay."""
