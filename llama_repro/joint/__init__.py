"""Fitted training steps on CPU ranks, predicted and measured: ``scripts/fit_run.py``."""
