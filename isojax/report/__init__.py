"""The report on a sweep: the paper's figures and one self-contained, interactive HTML page, for people who were not
there. write.py makes both.
"""
