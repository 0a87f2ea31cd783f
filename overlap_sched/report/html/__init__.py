"""One HTML file that shows a schedule: start with :func:`overlap_sched.report.html.page.write_page`.

It needs bokeh (``pip install 'overlap_sched[html]'``), whose script is copied into the file; nothing else does.
"""
