"""Reports: charts of the figures, one HTML page of all of them, and the page of claims."""
