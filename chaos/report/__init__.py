"""The report of a run as one self-contained HTML file: `page.render(result)`.

timeline.py   the drawing: rates, latencies, fault bands, a bar for each node
page.py       the page around it: verdict, figures, recovery times, checks, how to repeat
"""
