"""The law fitted to the paper's own Fig. 7 points against the law printed there (IsoCompute
Playbook, arXiv:2603.12151). One JSON line:

    python benchmarks/fig7.py PATH                 columns set, n, rollouts; the Easy set, hierarchical
    python benchmarks/fig7.py PATH --mode paper    with the running average

PATH is a table of the figure's points, which is not part of this project. Exit code 1 where a
parameter is outside its tolerance.
"""

import argparse
import json
import sys
from pathlib import Path

from isojax.cli.formatting import to_json_value
from isojax.scaling.law.law_from_file import fit_law_file

# parameter -> (as printed in Fig. 7 Easy, how far a fit to digitised points may be from it)
PUBLISHED = {"L": (6.09, 0.4), "k": (4.75, 0.6), "log10_C0": (5.84, 0.08), "b": (2.73, 0.2)}


def main() -> int:
    """Fit, compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--where", default="set=easy")
    parser.add_argument("--mode", default="hierarchical", choices=("hierarchical", "paper"))
    arguments = parser.parse_args()
    result = fit_law_file(arguments.path, [arguments.where], arguments.mode)
    law = result["n_star"]
    within = {name: abs(law[name] - value) <= slack for name, (value, slack) in PUBLISHED.items()}
    warned = any("distinct n" in flag for flag in result["flags"])
    line = {
        "benchmark": "fig7",
        "mode": result["mode"],
        "where": arguments.where,
        "points": result["points"],
        "form": law["form"],
        "fitted": {name: round(law[name], 3) for name in PUBLISHED},
        "intervals": law["intervals"]
        and {name: [round(v, 3) for v in pair] for name, pair in law["intervals"].items()},
        "published": {name: value for name, (value, _) in PUBLISHED.items()},
        "aicc": law["aicc"],
        "within": within,
        "few_distinct_n_said": warned,
    }
    print(json.dumps(to_json_value(line)))
    return 0 if all(within.values()) and warned else 1


if __name__ == "__main__":
    sys.exit(main())
