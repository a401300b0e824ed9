"""A recommendation as a trainer's config, one file for each framework: `render(recommendation, sweep_config) -> str`
and `HOW_TO_RUN`.

    recommendation: what to run. sweep_config: the sweep's own Config, None for imported logs.
    HOW_TO_RUN: the command that uses the written file; {file}, {folder} and {name} stand for its path, its folder, and
    its name less .yaml.

A fork adds a framework by adding a file here, or passes the path of a module of its own (`--for my_fork.my_trainer`).
"""
