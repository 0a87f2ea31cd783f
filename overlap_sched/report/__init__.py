"""What people look at: tables and explanations as text, a page, pictures, a trace.

Pictures need matplotlib (``pip install 'overlap_sched[plot]'``), which is imported only when one is drawn.
"""
