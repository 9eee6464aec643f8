"""The report of a run as one HTML file that needs nothing else: `page.render(result)`. Pure.

timeline.py   the drawing: rates, latencies, fault bands, a bar for each node
page.py       the page around it: verdict, figures, recovery times, checks, how to repeat
"""
