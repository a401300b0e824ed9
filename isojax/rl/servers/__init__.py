"""Servers of language models of other projects, over HTTP: one file for each dialect, and what they
share.

server_engine.py  the rollout engine
inspector.py      whether an answer is what was asked for
http_json.py      requests and answers in JSON, with retries and a timeout
dialect.py        what is asked of a server and what it answers, whatever it calls them
detect.py         which dialect the server at a URL speaks
"""
