"""The flat dictionary that report/ and cli/ still read a fit from; goes as soon as they read FitResult."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isojax.scaling.result import FitResult


def flatten(fit: FitResult) -> dict[str, Any]:
    """FitResult -> the flat dictionary."""

    def frontier_part(part: dict[str, Any]) -> dict[str, Any]:
        for row in part["frontier"]:
            if row["n_probability"] is not None:
                row["n_probability"] = {str(n): p for n, p in row["n_probability"].items()}
        for row in part["segments"]:
            row["censored"] = {"low": row.pop("censored_low"), "high": row.pop("censored_high")}
        return part | {"n_star": law_part(part["n_star"])}

    def law_part(n_star: dict[str, Any]) -> dict[str, Any]:
        law = {key: n_star["law"][key] for key in ("form", "L", "k", "log10_C0", "b")}
        flat = law | {key: value for key, value in n_star.items() if key != "law"}
        return flat | ({"form": "non-monotone"} if flat.get("monotone_rejected") else {})

    document = fit.model_dump(mode="json")
    if "health" not in fit.model_fields_set:
        del document["health"]
    joint = frontier_part(document.pop("joint"))
    del joint["B_p"]
    document |= {"schema": 2, "flags": [flag["text"] for flag in document["flags"]], **joint}
    document["by_B_p"] = [frontier_part(part) for part in document["by_B_p"]]
    document["by_B"] = [
        {**part, "n_star_M": {**law_part(part["n_star"]), "x": "log10 M", "intervals": None, "band": None}}
        for part in document["by_B"]
    ]
    for row in document["by_B"]:
        del row["n_star"]
    for row, curve in zip(document["curves"], fit.curves, strict=True):
        row["form"] = curve.form
    for row in document["runs"]:
        row["final"] = row.pop("final_reward")
    for name, shared in (("over_n", "at_B_p"), ("over_B_p", "at_n")):
        spread = (document["sensitivity"] or {}).get(name)
        if spread is not None:
            spread["range"], spread[shared] = spread.pop("spread"), spread.pop("shared_value")
    return document


def nest(fit: FitResult | Mapping[str, Any]) -> FitResult:
    """The flat dictionary -> FitResult."""
    if isinstance(fit, FitResult):
        return fit
    document = {key: value for key, value in fit.items() if key in FitResult.model_fields}

    def law_part(n_star: Mapping[str, Any], batch: bool = False) -> dict[str, Any]:
        law = {key: n_star[key] for key in ("form", "L", "k", "log10_C0", "b")}
        names = (
            ("no_effect", "aicc", "monotone_rejected", "monotone_cost")
            if batch
            else ("no_effect", "aicc", "intervals", "band")
        )
        law["form"] = "constant" if law["form"] == "non-monotone" else law["form"]
        return {"law": law, "no_effect": False, **{key: n_star[key] for key in names if key in n_star}}

    def frontier_part(part: Mapping[str, Any]) -> dict[str, Any]:
        segments = [
            {k: v for k, v in s.items() if k != "censored"}
            | {"censored_low": s["censored"]["low"], "censored_high": s["censored"]["high"]}
            for s in part.get("segments", ())
        ]
        return {
            "B_p": part.get("B_p"),
            "frontier": part["frontier"],
            "crossovers": part.get("crossovers", ()),
            "segments": segments,
            "n_star": law_part(part["n_star"]),
        }

    document["joint"] = frontier_part(fit)
    document["by_B_p"] = [frontier_part(part) for part in fit["by_B_p"]]
    document["by_B"] = [
        {key: value for key, value in part.items() if key != "n_star_M"} | {"n_star": law_part(part["n_star_M"], True)}
        for part in fit.get("by_B", ())
    ]
    document["runs"] = [
        {("final_reward" if key == "final" else key): value for key, value in row.items()} for row in fit["runs"]
    ]
    document["curves"] = [{key: value for key, value in row.items() if key != "form"} for row in fit["curves"]]
    document["flags"] = [{"code": "text", "severity": "warning", "text": text} for text in fit["flags"]]
    document["sensitivity"] = None
    if document.get("draws") is not None:
        count = len(document["draws"]["R0"])
        document["draws"] = {"tail": [1.0] * count, "shift": [[0.0] * count] * 2} | document["draws"]
    if document.get("intervals") is not None:
        document["intervals"] = {"noise_sd": 0.01, "method": "", "problems": None} | document["intervals"]
    empty = {
        "reduced_chi_square": None, "autocorrelation": None, "degrees_of_freedom": None, "per_curve": (), "ties": (), "left_out": (),
        "unequal_lengths": False,
    }  # fmt: skip
    defaults = {"base_reward": None, "intervals": None, "draws": None, "overfitting": (), "stability": ()}
    return FitResult.model_validate({"diagnostics": empty} | defaults | document)
