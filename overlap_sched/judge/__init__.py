"""How long an order takes, how much memory it needs, whether it is allowed, how far it is from the bound.

Shares no code with the scheduler that it judges.
"""
