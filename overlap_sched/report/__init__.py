"""What people look at: tables and explanations as text, a picture, a trace.

``plot`` needs matplotlib (``pip install 'overlap_sched[plot]'``) and is imported only when used.
"""

from overlap_sched.report.trace import write_trace
from overlap_sched.report.words.schedule import explanation, summary

__all__ = ["explanation", "summary", "write_trace"]
