"""The options of the commands that read tables, serve them, and keep them up."""

from __future__ import annotations

from timebeam.pipelines.options.parameters import (
    BUCKET_PATH,
    CENTURY_DAYS,
    DAY,
    FLAG,
    LETTERS,
    MAX_PORT,
    SEVERAL,
    TIME,
    TOPIC,
    TRUE,
    choice,
    file,
    not_negative,
    number,
    option,
    positive_number,
    rules_text,
    several,
    text,
    time_zone,
    whole_number,
)
from timebeam.schema.series.retention_rules import RULES

OUTPUTS = "table, table-all, json, json-ms, csv, annotations, FILE.png, FILE.html"
"""What `timebeam.pipelines.output.write_results.render` accepts, for help and messages."""

TREE_OUTPUTS = "text, json, html, FILE.txt, FILE.json, FILE.html"

OPTIONS = (
    # query
    option("query.output", f"one of {OUTPUTS}", text("table")),
    option(
        "query.rollup_config",
        "opentsdb: rollup configuration; read rollup tables where they give the same answer "
        "(docs/use/rollups.md)",
    ),
    option(
        "query.start",
        "first time: 1h-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970; required for points",
    ),
    option(
        "query.rate",
        "change per second: rate, rate{counter[,MAX[,RESET]]}, or rate{dropcounter}, which leaves out resets",
    ),
    option("end", "last time, in the forms of --start", text("now")),
    option(
        "timezone",
        "time zone of days in --start, --end and --downsample 1dc-sum, and of times in tables and charts, "
        "as Europe/Berlin",
        {"kind": time_zone, "default": "UTC"},
    ),
    option(
        "aggregator",
        "how to aggregate the series of a group: sum, min, max, avg, count, none ...",
        text("sum"),
    ),
    option("downsample", "one value per interval: 1m-avg, 1h-max-zero, 0all-sum"),
    option("group_by", "tag key: one result per value; several keys: one per combination of values", SEVERAL),
    option("max_seconds", "stop with an error after this many seconds", positive_number(most=86_400)),
    option("rollup", "read rollup tables where they give the same answer", TRUE),
    option("where", "table: FIELD=V or FIELD=V|W: only records that have this value", SEVERAL),
    option("query.annotations", "opentsdb: include annotations", TRUE),
    option("global_annotations", "opentsdb: include global annotations", FLAG),
    option("histogram", "opentsdb: counts of histograms, one result per bucket", FLAG),
    option(
        "percentiles",
        "opentsdb: percentile of histograms, 1 to 100, such as 99.9",
        several(not_negative, most=100.0),
    ),
    option("explain", "print to standard error which tables served which part", FLAG),
    # serve
    option("serve.port", "port to listen on", positive_number(4242, most=MAX_PORT)),
    option(
        "serve.rollup_config",
        "opentsdb: rollup configuration; read rollup tables where they give the same answer "
        "(docs/use/rollups.md)",
    ),
    option(
        "topic",
        "also accept points from producers, and publish them to this topic: projects/P/topics/T",
        regex=TOPIC,
        example="projects/my-project/topics/points",
    ),
    option("serve.max_seconds", "maximum seconds of a request", positive_number(60, most=3600)),
    option("bind", "address to listen on; 0.0.0.0 for all", text("127.0.0.1")),
    option(
        "allowed_host",
        "host name that requests may have: on a loopback address in addition to the local names; on "
        "other addresses requests with other names are rejected",
        SEVERAL,
    ),
    option("workers", "worker processes", positive_number(1, most=64)),
    option(
        "ignored_labels",
        "label to ignore in remote read: an external label of the Prometheus server",
        SEVERAL,
    ),
    option(
        "cache_bytes",
        "bytes per process for cached answers about past ranges; 0 turns off all caches, also of names and "
        "UIDs",
        whole_number(1 << 26),
    ),
    option("max_rows", "maximum rows that a request reads", positive_number(1_000_000)),
    option("max_points", "maximum points that a request reads or fills in", positive_number(20_000_000)),
    option("max_shown", "maximum points of an answer", positive_number(1_000_000)),
    option("max_bytes", "maximum bytes that a request reads", positive_number(1 << 30)),
    option("max_queries", "maximum requests that a process answers at once", positive_number(4, most=256)),
    option("max_waiting", "maximum requests that wait; others return 503", whole_number(64)),
    option("max_body", "maximum bytes of the body of a request", positive_number(1 << 20)),
    option("write_only", "accept points only, and open no tables", FLAG),
    option("telnet_port", "accept telnet `put` lines on this port", positive_number(most=MAX_PORT)),
    option("token_file", "file with the tokens of writers, one per line; without it everyone may write"),
    option(
        "max_held",
        "maximum bytes of bodies that a process holds until Pub/Sub has confirmed them; "
        "further requests return 503",
        positive_number(256 << 20),
    ),
    # series
    option("series.output", "form of the list", choice("text|json|csv", "text")),
    option("series.tag", "k=v, k=v|w, k=web* or k=*: only series that have this tag", SEVERAL),
    # suggest
    option("max", "maximum number of names to list; names are sorted by bytes", positive_number(25)),
    # names
    option("names.output", "form of the output", choice("text|json", "text")),
    option(
        "names.rollup_config",
        "merge: also the rows of the tables that this rollup configuration names",
        file("gs://my-bucket/rollups.json"),
    ),
    option("use", "list: also count the series and rows of each name; reads all row keys", FLAG),
    option(
        "wait_hours",
        "free: hours between the removal of a UID from its name and its deletion; restart "
        "all writers within this time",
        positive_number(168),
    ),
    option("yes", "rename, merge, free, fix: write; by default they print what would change", FLAG),
    # cardinality
    option("cardinality.output", "table, json, or FILE.png", text("table")),
    option("metric", "only metrics that match: a name, or a pattern such as app.*", text("*")),
    option("top", "how many of each kind to show", positive_number(10, most=10_000)),
    option("by", "order by series, or by new series", choice("series|growth", "series")),
    option(
        "since", "series first seen from this time on are new: 7d-ago, 2026-11-21", text("1d-ago"), regex=TIME
    ),
    option(
        "rejected",
        "files of dead letters: also show which producers sent series beyond limits, by the "
        "attributes of their messages",
        SEVERAL,
    ),
    # export
    option(
        "export.output",
        "folder of the files, local or on any file system of Beam; each day is a folder in it",
        required=True,
        regex=BUCKET_PATH,
        example="gs://my-bucket/points",
    ),
    option("export.dry_run", "read and count, and write nothing but dead letters", FLAG),
    option(
        "export.dead_letters",
        "destination of rows that cannot be read: files PREFIX-TIME-*.jsonl, or a topic",
        text("dead-letters"),
        regex=LETTERS,
        example="gs://my-bucket/dead-letters/export",
    ),
    option(
        "export.end",
        "end of the range, exclusive; every day that overlaps the range is exported completely",
        regex=TIME,
        example="1d-ago",
    ),
    option(
        "day",
        "day in UTC, such as 2026-11-20; by default the last complete day",
        regex=DAY,
        example="2026-11-20",
    ),
    option("by_metric", "a folder for each metric in the folder of a day", FLAG),
    option(
        "tags",
        "columns: a column tag_KEY per tag key; map: one column `tags` with a map",
        choice("columns|map", "columns"),
    ),
    option(
        "interval",
        "opentsdb: export the rollups of this interval of --rollup-config, such as 1h, instead of points",
        regex="[0-9]+[smhdwny]",
        example="1h",
    ),
    option("verify", "compare every column of the files with the manifests, and export nothing", FLAG),
    # meta
    option("meta.dry_run", "count what would be written, and write nothing", FLAG),
    option("meta.yes", "with --purge: delete the listed metadata", FLAG),
    option("count", "count the points of each series into ts_ctr; reads all points", FLAG),
    option("purge", "afterwards list the metadata of series without points", FLAG),
    # trees
    option("trees.layout", "layout with trees", choice("opentsdb", "opentsdb")),
    option("trees.output", f"show: one of {TREE_OUTPUTS}; create, test, purge: text, json", text("text")),
    option("trees.dry_run", "create, sync: print what would be done, and write nothing", FLAG),
    option(
        "trees.dead_letters",
        "sync: destination of series that cannot be placed: files PREFIX-TIME-*.jsonl, or a topic "
        "projects/P/topics/T",
        text("dead-letters"),
    ),
    option(
        "trees.series",
        "sync: read series from the meta table or from the keys of the data table; by "
        "default from the meta table, if it has rows",
        choice("meta|data"),
    ),
    option("trees.yes", "purge: delete what the dry run counts", FLAG),
    option(
        "tree", "show, test, sync, purge: id or name of one tree; by default all, for sync all enabled ones"
    ),
    option("exact", "create: also delete stored rules that are not in the file", FLAG),
    option("depth", "show as text: number of branch levels", positive_number()),
    option("definition", "test: use the trees in this file instead of the stored ones"),
    # delete
    option(
        "delete.rollup_config",
        "opentsdb: rollup configuration, which names the tables of rollups; needed with DAYS/DAYS",
        file("gs://my-bucket/rollups.json"),
    ),
    option("delete.dry_run", "count what would be deleted, also with --token", FLAG),
    option(
        "delete.series",
        "also delete annotations of the range, and index rows, metadata and tree leaves of series that then "
        "have no points",
        FLAG,
    ),
    option(
        "delete.start",
        "first time: 2026-11-21T08:00:00Z, 30d-ago, seconds or ms since 1970; required with METRIC",
        regex=TIME,
        example="2026-11-20T08:00:00Z",
    ),
    option("delete.end", "last time, in the forms of --start", text("now"), regex=TIME),
    option(
        "keep_days",
        "instead of METRIC: delete points older than this many UTC days, DAYS or "
        "PATTERN=DAYS, or DAYS/DAYS of points and rollups; the first match applies; table "
        "[retention] of the settings file",
        several(rules_text),
        regex=RULES,
        example="debug.*=7,sys.*=30/400,400",
    ),
    option("unattended", "with --keep-days: delete without a token, for scheduled runs", FLAG),
    option(
        "token",
        "token of a dry run: delete what it showed; without it, this is a dry run",
        regex="[0-9a-f]+-[0-9a-f]+-[0-9a-f]+",
        example="19aa2b3c4d5-1f2e3d4c-5b6a79",
    ),
    option(
        "log",
        "log of deleted rows: files PREFIX-TOKEN-*.jsonl",
        text("deleted"),
        regex=BUCKET_PATH,
        example="gs://my-bucket/deleted/run",
    ),
    option("annotations", "opentsdb: delete annotations of series instead of points", FLAG),
    option(
        "keep_rollups", "do not mark the hours for `rollup --changed`, so that rollups stay as they are", FLAG
    ),
    # reindex
    option("reindex.dry_run", "read and count, and write nothing", FLAG),
    # rollup
    option(
        "rollup.zone",
        "time zone in which days are counted, such as Europe/Berlin",
        text("UTC"),
        regex="[A-Za-z][-+_/A-Za-z0-9]*",
        example="Europe/Berlin",
        stored=True,
    ),
    option("rollup.dry_run", "print what would be read and written, and do nothing", FLAG),
    option(
        "rollup.dead_letters",
        "destination of rows that cannot be rolled up: files PREFIX-TIME-*.jsonl, or a topic",
        text("dead-letters"),
        regex=LETTERS,
        example="gs://my-bucket/dead-letters/rollup",
    ),
    option("rollup.end", "end of the range, exclusive", regex=TIME, example="1h-ago"),
    option(
        "rollup.day",
        "day to roll up, such as 2026-11-20; by default the last complete day",
        regex=DAY,
        example="2026-11-20",
    ),
    option(
        "delay_hours",
        "hours after the end of a day until it is complete",
        number(0.0, most=24 * CENTURY_DAYS),
    ),
    option("allow_incomplete", "accept a day or range that has not ended; run it again when it has", FLAG),
    option(
        "changed",
        "only hours that were marked since their last rollup (ingest --mark-changed)",
        FLAG,
    ),
    option("follow", "run until stopped, in rounds that roll up marked hours (needs marked_since)", FLAG),
    option(
        "every_seconds",
        "follow: seconds between rounds, unless hours wait",
        number(60.0, most=86_400),
    ),
    option("rounds", "follow: end after this many rounds; by default run until stopped", positive_number()),
    option(
        "quiet_seconds",
        "follow: seconds that an hour waits after its end and after its last mark",
        number(60.0, most=86_400),
    ),
    option(
        "lease_seconds",
        "follow: seconds until another process may take over the hours of a round; choose "
        "more than a round takes",
        number(600.0, most=86_400),
    ),
    option(
        "most_hours",
        "follow: maximum hours in a round, over all metrics; others wait for the next round",
        positive_number(10_000),
    ),
    option(
        "lookback_days",
        "also roll up this many days before the day, for late points",
        whole_number(0, most=CENTURY_DAYS),
    ),
    # compact
    option("compact.dry_run", "count what would change, and write nothing", FLAG),
    option(
        "compact.end",
        "end of the range, exclusive; only whole hours are compacted",
        regex=TIME,
        example="1d-ago",
    ),
    option(
        "compact.day",
        "day in UTC, such as 2026-11-20; by default the last closed day",
        regex=DAY,
        example="2026-11-20",
    ),
    option(
        "closed_hours",
        "hours after the end of an hour until it is closed",
        number(1.0, most=24 * CENTURY_DAYS),
    ),
    option(
        "form",
        "write compacted columns, or the append column (for tables that a TSD appends to)",
        choice("compacted|append", "compacted"),
    ),
    # archive
    option("archive.dry_run", "read and count, and write nothing", FLAG),
    option(
        "archive.start",
        "archive from this time on; by default from the first point",
        regex=TIME,
        example="2026-11-20",
    ),
    option(
        "older_than",
        "archive hours whose end is older than this, such as 30d or 12h",
        text("30d"),
        regex="[0-9]+[hdwny]",
    ),
    option(
        "quiet_hours",
        "skip hours that were written less than this many hours ago",
        number(1.0, most=24 * CENTURY_DAYS),
    ),
    option(
        "delete_source",
        "delete archived points from the data table after comparing them with the archive",
        FLAG,
    ),
    option(
        "reader_hours",
        "with --delete-source: delete only hours archived at least this many hours ago; "
        "choose longer than any query or rollup runs; use 0 only while nothing reads",
        number(1.0, most=24 * CENTURY_DAYS),
    ),
    # check
    option("check.output", "form of the findings", choice("text|json", "text")),
    option("most", "findings to list; the rest are counted", positive_number(100)),
)
