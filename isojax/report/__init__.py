"""What is made of a fit for people and for other trainers: the paper's figures, one self-contained,
interactive HTML page (page/html_page.py), and configs of other trainers (exporters/)."""
