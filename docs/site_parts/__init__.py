"""What the site needs beside Sphinx: pictures, the command line's reference, charts of results."""
