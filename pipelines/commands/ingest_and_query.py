"""The commands that store points, copy them, and read them."""

from __future__ import annotations

from timebeam.pipelines.options.command_line import Argument, Command

_WRITING = """
        Layout: packing |
        UIDs: auto_create_metrics auto_create_tagks auto_create_tagvs random_metrics
            uid_cache_size uid_snapshot_size uid_negative_seconds |
        Bigtable: project instance app_profile bigtable_writer mark_changed meta |
        Run: dry_run summary max_rejected"""
"""How points are stored; the same for all inputs."""

_STORING = f"""
        Input: format dead_letters flush_seconds stop_when_idle |
        Format: *format records_encoding |
        Layout: layout table_prefix set *written overflow_tag drop_tags keep_tags tables |
        {_WRITING} |
        Series: max_new_series max_series max_tag_values max_all_series |
        Format: formats"""

SELECTION = """
        Query: start end timezone tag explicit_tags tsuid aggregator rate downsample group_by
            rollup_config max_seconds rollup full_scan |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile"""
"""The options that say which points a query reads, and how it aggregates them."""

INGEST_COMMAND = Command(
    "ingest",
    "Stores the points of files, or of Pub/Sub messages, in Bigtable.",
    usage="--format FORMAT --input FILE ... [options]\n"
    "--format FORMAT --input-subscription SUBSCRIPTION [options]",
    common="""
        Input: input input_subscription format dead_letters |
        Store: auto_create_metrics packing max_series |
        Tables: layout tables table_prefix set project instance |
        Run: dry_run preflight max_rejected summary
    """,
    page="docs/use/ingest.md",
    job="timebeam.pipelines.ingest.ingest_jobs:ingest_job",
    takes_archive=True,
    options=f"Input: input input_subscription input_topic | {_STORING} | Run: preflight",
    examples="""\
  timebeam ingest --layout opentsdb --format opentsdb-json --input 'metrics/*.json.gz' \\
      --auto-create-metrics --project my-project --instance my-instance
  timebeam ingest --layout opentsdb --format influx --input telegraf.lp.zst --auto-create-metrics
  timebeam ingest --layout opentsdb --format opentsdb-json \\
      --input-subscription projects/my-project/subscriptions/points
  timebeam ingest --layout opentsdb --format opentsdb-text --input put.txt --dry-run
  timebeam ingest --layout opentsdb --format opentsdb-annotations --input annotations.json
  timebeam ingest --layout table --tables market.toml --format records --input 'market-*.jsonl.gz'
  timebeam ingest ... --preflight
  timebeam ingest ... --runner DataflowRunner --region europe-west1 --temp_location gs://bucket/tmp

Beam's own options can be given too""",
)

REPLAY_COMMAND = Command(
    "replay",
    "Ingests the payloads of dead letters.",
    usage="SOURCE --format FORMAT [options]",
    common="""
        Input: format dead_letters stop_when_idle |
        Store: auto_create_metrics |
        Tables: layout tables table_prefix set project instance |
        Run: dry_run max_rejected summary
    """,
    page="docs/use/ingest.md",
    job="timebeam.pipelines.ingest.ingest_jobs:replay_job",
    takes_archive=True,
    arguments=(Argument("source", metavar="SOURCE", help="files, a pattern, or projects/P/subscriptions/S"),),
    options=_STORING,
    examples="""\
  timebeam replay 'dead-letters-*.jsonl' --layout opentsdb --format opentsdb-json --auto-create-metrics
  timebeam replay projects/my-project/subscriptions/dead --layout opentsdb --format influx \\
      --dead-letters projects/my-project/topics/dead-again --stop-when-idle 10
  timebeam replay 'dead-letters-*.jsonl' --layout table --tables market.toml --format records

takes the options of `timebeam ingest`; give the same --layout options as there""",
)

COPY_COMMAND = Command(
    "copy",
    "Copies the points of a time range, then verifies the copy.",
    usage="--from LAYOUT --to LAYOUT --start TIME [options]",
    common="""
        Points: start end also rollup_config |
        From: from table_prefix tables set |
        To: to to_table_prefix to_set auto_create_metrics |
        Bigtable: project instance |
        Run: dry_run verify_only dead_letters
    """,
    page="docs/use/copy.md",
    job="timebeam.pipelines.store.copy:job_of",
    layouts=("from", "to"),
    takes_archive=True,
    options=f"""
        From: from table_prefix set tables |
        To: to to_table_prefix to_set *to_written |
        Points: start end also rollup_config |
        Input: dead_letters |
        {_WRITING} verify_only
    """,
    examples="""\
  timebeam copy --from opentsdb --to heroic --start 2026-11-01 --end 2026-11-21
  timebeam copy --from kairosdb --set row_spec=milliseconds --to opentsdb --to-set salt_width=1 \\
      --to-table-prefix new- --auto-create-metrics --start 2020-01-01
  timebeam copy --from heroic --to kairosdb --start 2026-11-01 --verify-only
  timebeam copy --from table --tables market.toml --to opentsdb --auto-create-metrics --start 2026-11-01
  timebeam copy --from opentsdb --to opentsdb --to-table-prefix wide- --to-set uid_width_metric=4 --start 0 \\
      --auto-create-metrics --also rollups --also meta --also trees --rollup-config rollups.json

Beam's own options can be given too""",
)

EXPORT_COMMAND = Command(
    "export",
    "Writes the points of whole days as Parquet files; safe to repeat.",
    usage="--output FOLDER [--day DAY | --start TIME --end TIME] [options]",
    common="""
        Export: output day start end by_metric tags verify |
        Tables: layout tables table_prefix set project instance |
        Run: dry_run max_rejected
    """,
    page="docs/use/copy.md",
    job="timebeam.pipelines.store.export:job_of",
    takes_archive=True,
    options="""
        Export: output day start end by_metric tags rollup_config interval verify dead_letters |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile |
        Run: dry_run summary max_rejected
    """,
    examples="""\
  timebeam export --layout opentsdb --output points --day 2026-11-20
  timebeam export --layout opentsdb --output gs://my-bucket/points --start 30d-ago --end now --by-metric
  timebeam export --layout table --tables market.toml --output points --day 2026-11-20 --tags map
  timebeam export --layout opentsdb --output points --day 2026-11-20 --verify
  timebeam export --layout opentsdb --output rollups --rollup-config rollups.json --interval 1h

a repeated run replaces the files of its days; Beam's own options can be given too""",
)

QUERY_COMMAND = Command(
    "query",
    "Reads and aggregates points.",
    usage="METRIC --start TIME [--tag KEY=VALUE ...] [options]\nTABLE [--where FIELD=VALUE ...] [options]",
    common="""
        Query: start end tag aggregator downsample rate group_by |
        Output: output timezone explain |
        Tables: layout tables table_prefix set project instance rollup_config
    """,
    page="docs/use/query.md",
    runs="timebeam.pipelines.query.query_points:run",
    arguments=(
        Argument(
            "metric",
            nargs="?",
            metavar="METRIC",
            help="name of the metric; or of a declared table, whose records are read; not with --tsuid",
        ),
    ),
    takes_archive=True,
    options=f"""{SELECTION} |
        Query: where output csv_guard annotations global_annotations histogram percentiles explain
    """,
    examples="""\
  timebeam query sys.cpu.percent --layout opentsdb --start 1h-ago --tag mode=user --group-by core
  timebeam query sys.load --layout opentsdb --start 2026-11-21 --downsample 1m-avg --output load.png
  timebeam query sys.load --layout opentsdb --start 2026-11-01 --downsample 1dc-max --timezone Europe/Berlin
  timebeam query sys.net.bytes --layout opentsdb --start 1d-ago --aggregator none --output json
  timebeam query sys.load --layout opentsdb --start 90d-ago --downsample 1d-avg --rollup-config r.json
  timebeam query sys.load --layout opentsdb --start 1d-ago --global-annotations --output load.html
  timebeam query web.latency --layout opentsdb --start 1h-ago --percentiles 50 --percentiles 99
  timebeam query QUOTE --tables market.toml --start 1h-ago --where EXCHANGE=NYSE --where SYMBOL=F""",
)

SERVE_COMMAND = Command(
    "serve",
    "Serves OpenTSDB's read API, and takes points for Pub/Sub.",
    usage="[--port PORT] [options]\n--write-only --topic TOPIC [options]",
    common="""
        Server: bind port workers rollup_config allowed_host |
        Budgets: max_seconds max_points cache_bytes |
        Writes: topic write_only telnet_port token_file |
        Tables: layout tables table_prefix set project instance
    """,
    page="docs/use/serve.md",
    runs="timebeam.pipelines.serve.server:run",
    takes_archive=True,
    options="""
        Server: bind allowed_host port workers rollup_config ignored_labels cache_bytes |
        Budgets: max_rows max_points max_shown max_bytes max_seconds max_queries max_waiting
            max_body |
        Writes: topic write_only telnet_port token_file max_held formats |
        Format: histogram_id influx_metric influx_precision influx_no_time influx_booleans nan
            kairosdb_ttl otlp_resource otlp_scope otlp_delta otlp_histogram |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile
    """,
    examples="""\
  timebeam serve --layout opentsdb
  timebeam serve --layout opentsdb --rollup-config rollups.json --port 4242 --workers 2
  timebeam serve --write-only --topic projects/my-project/topics/points --telnet-port 4243
  timebeam serve --layout heroic --max-seconds 20 --max-points 10000000""",
)

SERIES_COMMAND = Command(
    "series",
    "Lists series.",
    usage="METRIC [--tag KEY=VALUE ...] [options]",
    common="""
        Series: tag source output |
        Tables: layout tables table_prefix set project instance
    """,
    page="docs/use/names.md",
    runs="timebeam.pipelines.query.series:list_series",
    arguments=(Argument("metric", metavar="METRIC", help="name of the metric, or a pattern: 'sys.cpu.*'"),),
    takes_archive=True,
    options="""
        Series: tag source output csv_guard |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile
    """,
    examples="""\
  timebeam series 'sys.cpu.*' --layout opentsdb
  timebeam series 'sys.*' --layout opentsdb --tag 'host=web*' --tag 'dc=lga|sjc' --output csv
  timebeam series sys.load --layout opentsdb --source data
  timebeam series '*' --layout kairosdb --set row_spec=milliseconds --output json
  timebeam series '*' --layout table --tables market.toml

* in a pattern matches any text, including none; quote patterns to protect them from the shell""",
)

SUGGEST_COMMAND = Command(
    "suggest",
    "Lists names that begin with a prefix.",
    usage="metrics|tagk|tagv [PREFIX] [options]",
    common="""
        Names: max output |
        Tables: layout table_prefix set project instance
    """,
    page="docs/use/names.md",
    runs="timebeam.pipelines.query.series:list_names",
    arguments=(
        Argument("kind", choices=("metrics", "tagk", "tagv"), help="kind of names"),
        Argument(
            "prefix",
            nargs="?",
            default="",
            metavar="PREFIX",
            help="beginning of the names; by default all names",
        ),
    ),
    takes_archive=True,
    options="""
        Names: max output |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile
    """,
    examples="""\
  timebeam suggest metrics sys. --layout opentsdb
  timebeam suggest tagv web --layout opentsdb --max 1000 --output json
  timebeam suggest tagk --layout opentsdb""",
)
