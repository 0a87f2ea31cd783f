"""What people look at: figures and explanations as text, a picture, a trace.

``plot`` needs matplotlib (``pip install 'overlap_sched[plot]'``) and is imported only when used.
"""

from overlap_sched.report.text import explanation, figures, summary
from overlap_sched.report.trace import write_trace

__all__ = ["explanation", "figures", "summary", "write_trace"]
