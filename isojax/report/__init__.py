"""The report on a sweep: the paper's figures and one self-contained, interactive HTML page (write.py)."""
