"""Warnings on tables that mix several settings in one law or curve (`isojax fit-law`,
`fit-curve`)."""

from collections.abc import Iterator, Sequence

from isojax.core.columns import is_blank
from isojax.core.tabular import DataTable

MAX_SETTING_VALUES = 20  # a text column with more distinct values labels each row and is no setting


def describe_mixtures(
    table: DataTable, settings: Sequence[str], filters: Sequence[str], fitted: str
) -> Iterator[str]:
    """A warning for each setting of which the table mixes several values in one fit.

    settings: names of columns of the table, such as ["B_p"]. filters: those that chose the rows,
    such as ["B_p=32"]; their columns are not warned of. fitted: "law" or "curve". A column counts
    where its values occur twice on average at least, and are at most MAX_SETTING_VALUES."""
    filtered_columns = {text.partition("=")[0].strip() for text in filters}

    for name in settings:
        if name in filtered_columns:
            continue
        values = [str(value) for value in table.rows.column(name) if not is_blank(value)]
        distinct_values = list(dict.fromkeys(values))
        if 1 < len(distinct_values) <= min(MAX_SETTING_VALUES, len(values) // 2):
            mixture = f"the points mix {name} = {', '.join(distinct_values)} in one {fitted}"
            yield f"{mixture}; --where {name}={distinct_values[0]} takes one of them"
