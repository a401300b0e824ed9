"""A recommendation as another trainer's config, one file a framework: `render(recommendation, saved, fit) -> str` and
`HOW_TO_RUN`.

    recommendation: what to run. saved: the sweep's own Config, None for imported logs. fit: the content of fit.json.
    HOW_TO_RUN: the command that uses the written file; {file}, {folder} and {name} stand for its path, its folder, and
    its name less .yaml.

A fork adds a framework by adding a file here, or passes the path of a module of its own (`--for my_fork.my_trainer`).
"""
