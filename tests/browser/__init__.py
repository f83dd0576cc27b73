"""The page in a real browser: Chromium of the distribution, driven by Playwright."""
