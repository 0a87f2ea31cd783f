"""What people look at: figures and explanations as text, a picture, a trace.

``plot`` needs matplotlib (``pip install 'overlap_sched[plot]'``) and is imported only when used.
"""

from overlap_sched.report.trace import write_trace
from overlap_sched.report.words.schedule import explanation, figures, summary

__all__ = ["explanation", "figures", "summary", "write_trace"]
