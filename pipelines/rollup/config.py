"""`--rollup_config`: OpenTSDB's rollup configuration, and the tables that it asks for."""

from __future__ import annotations

import argparse

from timebeam.pipelines.options.parameters import BUCKET_PATH, Parameter, TemplateType, UsageError
from timebeam.pipelines.options.values import layout_of, layout_with, text_of
from timebeam.schema.layouts import RollupTables, TableSpec, find_capability
from timebeam.schema.rollup.config import RollupConfig, RollupConfigError
from timebeam.schema.rollup.config_json import parse_config

ROLLUP_CONFIG = Parameter(
    "rollup_config",
    "OpenTSDB's rollup configuration, a JSON file (docs/how-to/rollups.md); declared tables use --tables",
    "Rollup",
    template=TemplateType.READ_FILE,
    regex=BUCKET_PATH,
    example="gs://my-bucket/rollups.json",
    setting=True,
)


def read_config(path: str) -> RollupConfig:
    """The configuration in a file.

    Raises:
      UsageError: it cannot be read, or used.
    """
    try:
        return parse_config(text_of(path, "rollup configuration"))
    except RollupConfigError as error:
        raise UsageError(f"{path}: {error}") from error


def rollups_of(options: argparse.Namespace) -> tuple[RollupTables, RollupConfig]:
    """The layout and the rollup configuration that the options name.

    Raises:
      UsageError: the layout has no rollups, or the configuration is not of its tables.
    """
    layout = layout_with(options, RollupTables)
    config = read_config(options.rollup_config)
    raw = layout.options.table_prefix + config.default.table
    if raw != layout.data_table:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the raw points are in {layout.data_table}"
        )
    return layout, config


def tables_of_rollups(options: argparse.Namespace) -> list[TableSpec]:
    """The tables that the rollup configuration adds to those of the layout.

    Raises:
      UsageError: the layout has no rollups, or the configuration is wrong.
    """
    # What only jobs need: a query, too, reads the configuration, and needs no Beam.
    from timebeam.pipelines.rollup.jobs import series_tables
    from timebeam.transforms.rollup.job import rollup_tables

    config = read_config(options.rollup_config)
    layout = find_capability(layout_of(options), RollupTables)
    if layout is not None:
        return list(rollup_tables(config, layout))
    return series_tables(options, config)
