"""The page: what a pipeline does and has done, in a browser.

    checkpoint, metrics ─► batches ─► status ─┬─► status.json ─► static/page.js
                                 masters ─────┤
                                 advice ──────┘─► metrics (Prometheus)

It only reads what a pipeline leaves on disk. So it shows one that runs and one that has ended
alike, from any process. docs/monitoring.md says what it shows, and docs/adr/0027 why it is made so.
"""
