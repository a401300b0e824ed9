"""The report on a sweep: the paper's figures and one self-contained, interactive HTML page
(page/html_page.py)."""
