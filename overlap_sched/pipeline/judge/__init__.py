"""Judges of pipelined schedules: is one allowed, how long does it take, what does it hold, what can none beat.

They share nothing with generators, replay and memory but the data (``action``, ``job``, ``schedule``); a test keeps
it so.
"""
