"""The options of several commands, and of those that set up, size and fill tables."""

from __future__ import annotations

from timebeam.pipelines.options.parameters import (
    CENTURY_DAYS,
    DECLARED,
    FLAG,
    LETTERS,
    MAX_PORT,
    RECORDS,
    SEVERAL,
    TIME,
    TRUE,
    Limit,
    TemplateType,
    choice,
    duration,
    file,
    limit_text,
    number,
    option,
    positive_number,
    several,
    text,
    values_limit_text,
    whole_number,
)
from timebeam.schema.formats import AUTO, FORMATS
from timebeam.schema.stores import STORES

_STORES = "|".join(STORES)
_LIMITS = r"([^=,]+=)?[0-9]{1,18}(,([^=,]+=)?[0-9]{1,18})*"

OPTIONS = (
    # several commands
    option("project", "Google Cloud project; `local` with an emulator"),
    option(
        "instance",
        "Bigtable instance; `local` with an emulator",
        regex="[a-z][-a-z0-9]*[a-z0-9]",
        example="my-instance",
        label="Bigtable instance",
    ),
    option(
        "layout",
        "layout of the tables; table: declared tables, see --tables",
        choice(f"{_STORES}|{DECLARED}"),
        required=True,
        stored=True,
    ),
    option(
        "set",
        "a setting, such as salt_width=1, for tables without stored settings; names are those of the options "
        "of `timebeam tables create`",
        SEVERAL,
    ),
    option("to_set", "as --set, but for the tables to write", SEVERAL),
    option(
        "to_table_prefix",
        "prefix of all table names of the layout to write",
        text(""),
        regex="[-_.a-zA-Z0-9]*",
        example="new-",
    ),
    option("output", "form of the list", choice("text|json", "text")),
    option("table_prefix", "prefix of all table names", text(""), regex="[-_.a-zA-Z0-9]*", example="prod-"),
    option(
        "tables",
        "layout table: file that declares the tables",
        file("gs://my-bucket/tables.toml"),
        shown_for=("layout", ("table",)),
    ),
    option(
        "rollup_config",
        "OpenTSDB's rollup configuration, a JSON file (docs/use/rollups.md); declared tables use --tables",
        file("gs://my-bucket/rollups.json"),
    ),
    option(
        "meta",
        "opentsdb: metadata to write for new series: off, track (ts_ctr), or full (also ts_meta and the "
        "metadata of UIDs); see docs/use/names.md",
        choice("off|track|full", "off"),
    ),
    option(
        "app_profile",
        "app profile of the instance; needs single-cluster routing",
        regex="[_a-zA-Z0-9][-_.a-zA-Z0-9]*",
        example="ingest",
        label="Bigtable app profile",
    ),
    option("dry_run", "parse, pack and count, and write nothing but dead letters", FLAG),
    option(
        "dead_letters",
        "destination of rejected input: files PREFIX-TIME-*.jsonl, or a topic projects/P/topics/T",
        text("dead-letters"),
        regex=LETTERS,
        example="gs://my-bucket/dead-letters/points",
    ),
    option(
        "packing",
        "compacted: one column per row and arrival; points: one cell per point; append: one column per row, "
        "to which points are appended, as by a TSD with enable_appends; by default compacted for files in "
        "layout opentsdb, otherwise points",
        choice("points|compacted|append"),
    ),
    option("auto_create_metrics", "assign UIDs to unknown metrics", FLAG),
    option("auto_create_tagks", "assign UIDs to unknown tag keys", TRUE),
    option("auto_create_tagvs", "assign UIDs to unknown tag values", TRUE),
    option("random_metrics", "assign random UIDs to new metrics, which spreads writes", FLAG),
    option("uid_cache_size", "names and series cached by each worker process", positive_number(1_000_000)),
    option("uid_snapshot_size", "names read from the UID table at the start", whole_number(1_000_000)),
    option("uid_negative_seconds", "seconds before a name that has no UID is looked up again", number(60.0)),
    option(
        "bigtable_writer",
        "what writes rows; direct: rows that Bigtable rejects become dead letters, more errors are retried, "
        "and --app-profile works; beam: Beam's WriteToBigTable",
        choice("direct|beam", "direct"),
    ),
    option("mark_changed", "mark hours that receive points, for rollup --changed", FLAG),
    option("summary", "form of the summary", choice("text|json", "text")),
    option(
        "max_rejected",
        "exit code 1 if more is rejected: a number (100), or a share of what was read (0.5%)",
        {"kind": Limit.parse},
        example="0.5%",
    ),
    option("preflight", "check prerequisites, print how to fix what is missing, and exit", FLAG),
    option(
        "start",
        "start of a range instead of a day: 2026-11-20T08:00:00Z, 2d-ago",
        regex=TIME,
        example="2026-11-20T08:00:00Z",
    ),
    option(
        "tag",
        "only series that have this tag: k=v, k=v|w, k=web* (ignores case), k=*, or a filter of OpenTSDB: "
        "k=regexp(web.*), k=not_literal_or(v|w), k=iliteral_or(v), k=wildcard(web*) ...; k=literal_or(v) "
        "for a value with * or (",
        SEVERAL,
    ),
    option("explicit_tags", "only series without tag keys other than those of --tag", FLAG),
    option("tsuid", "opentsdb: only these series, by TSUIDs in hex; instead of METRIC", SEVERAL),
    option("full_scan", "table: read all rows of a table if no key range serves the query", FLAG),
    option(
        "csv_guard",
        "csv: put ' before cells that a spreadsheet would compute: those that begin with =, +, - or @",
        FLAG,
    ),
    option(
        "source",
        "opentsdb: read the meta table or the keys of the data table; auto: the meta table unless it is "
        "empty",
        choice("auto|meta|data", "auto"),
    ),
    # init
    option("init.project", "Google Cloud project; without it the file is for the local emulator"),
    option("init.instance", "Bigtable instance of the project"),
    option("init.layout", "how points are stored", choice(_STORES, "opentsdb")),
    # config
    option(
        "config",
        "settings file, local or gs://; without it timebeam.toml of this folder, if there is one",
        file("gs://my-bucket/timebeam.toml"),
    ),
    option("profile", "profile of the settings file", regex="[-_.a-zA-Z0-9]+", example="prod"),
    # emulator
    option("port", "port to listen on; 0 for any free one", whole_number(8086, most=MAX_PORT)),
    option("build_only", "print the path of the emulator, built if necessary; do not run it", FLAG),
    # tables
    option("tables.output", "form of the messages", choice("text|json", "text")),
    option(
        "zone",
        "rollups: time zone of days, such as Europe/Berlin",
        text("UTC"),
        regex="[A-Za-z][-+_/A-Za-z0-9]*",
        example="Europe/Berlin",
        stored=True,
    ),
    option("tables.rollup_config", "also the tables of this rollup configuration"),
    option("tables.meta", "opentsdb: also the meta table", FLAG),
    option("trees", "opentsdb: also the tree table", FLAG),
    option("series_limits", "also the table of counts, for limits such as --max-series", FLAG),
    option(
        "max_age_days",
        "retention: maximum age in days of cells of the data tables; 0 removes it "
        "(docs/operate/maintenance.md)",
        number(most=CENTURY_DAYS),
    ),
    option("table", "retention, forget: only this table, by its name with prefix; forget: a declared table"),
    option("family", "retention: only this family, such as d7 of kairosdb"),
    option(
        "rows",
        "adopt: check about this many rows of points, from the first; 0 for all",
        whole_number(100_000),
    ),
    option("tables.dry_run", "print what would be done, and change nothing", FLAG),
    # ingest
    option(
        "input",
        "files or patterns, local or on any file system of Beam (gs://bucket/*.json.gz); "
        "plain, .gz, .bz2 or .zst",
        file("gs://my-bucket/metrics/*.json.gz", many=True),
        label="Input files",
    ),
    option(
        "input_subscription",
        "Pub/Sub subscription to read until stopped: projects/P/subscriptions/S",
        template=TemplateType.SUBSCRIPTION,
        regex="projects/[^/]+/subscriptions/[^/]+",
        example="projects/my-project/subscriptions/points",
    ),
    option(
        "input_topic",
        "Pub/Sub topic to read until stopped, through a temporary subscription: projects/P/topics/T",
    ),
    option(
        "format",
        "format of files, and of messages without a `format` attribute",
        choice("|".join((*FORMATS, RECORDS, AUTO))),
        required=True,
    ),
    option(
        "flush_seconds",
        "messages: seconds to gather points that are packed together; packing `points` does not wait",
        number(30.0, most=86_400),
    ),
    option(
        "stop_when_idle",
        "messages, on a local runner: stop after this many seconds without work (more than 30, to wait for "
        "messages that a killed process still holds); by default run until stopped",
        number(most=86_400 * CENTURY_DAYS),
    ),
    option(
        "records_encoding",
        "records: JSON lines, CSV with a header, or Avro object containers",
        choice("json|csv|avro", "json"),
        shown_for=("format", ("records",)),
    ),
    option(
        "overflow_tag",
        "opentsdb: drop tags of series with more than --max-tags tags; this tag gets a hash of "
        "the dropped tags",
        regex=r"[^,\n]+",
        example="overflow",
        shown_for=("layout", ("opentsdb",)),
    ),
    option(
        "drop_tags",
        "opentsdb, with --overflow-tag: keys of the tags to drop, as a,b",
        regex=r"[^,\n]+(,[^,\n]+)*",
        example="pod_uid,image_id",
        shown_for=("layout", ("opentsdb",)),
    ),
    option(
        "keep_tags",
        "opentsdb, with --overflow-tag: keys of the tags to keep, as a,b; all others are dropped",
        regex=r"[^,\n]+(,[^,\n]+)*",
        example="job,instance",
        shown_for=("layout", ("opentsdb",)),
    ),
    option(
        "max_new_series",
        "maximum new series per metric and minute in each worker process, N or PATTERN=N "
        "(the first match applies); points of further series are rejected",
        several(limit_text),
        regex=_LIMITS,
        example="app.*=1000,50000",
    ),
    option(
        "max_series",
        "maximum series per metric, N or PATTERN=N; points of further series are rejected",
        several(limit_text),
        regex=_LIMITS,
        example="app.*=1000,50000",
    ),
    option(
        "max_tag_values",
        "maximum values per tag key of a metric, N or PATTERN=N; points of series with "
        "further values are rejected",
        several(values_limit_text),
        regex=_LIMITS,
        example="app.*=1000,50000",
    ),
    option(
        "max_all_series",
        "maximum series of all metrics; points of further series are rejected",
        whole_number(),
        example="10000000",
    ),
    option(
        "formats",
        "messages: further formats that the attribute `format` of a message may name, or "
        "that --format auto chooses from, also as a,b; messages with other formats are "
        "rejected",
        SEVERAL,
        regex="[-a-z0-9]+(,[-a-z0-9]+)*",
        example="influx,opentsdb-text",
    ),
    option(
        "serve.formats",
        "with --topic: further formats to accept, at /write/FORMAT, also as a,b; give the same formats to "
        "the `timebeam ingest` that reads the topic",
        SEVERAL,
        regex="[-a-z0-9]+(,[-a-z0-9]+)*",
        example="avro,telegraf-json",
    ),
    # generate
    option("generate.output", "file, compressed if its name ends in .gz; - for standard output"),
    option(
        "generate.format",
        "format of the lines",
        choice("opentsdb-json|opentsdb-text|influx", "opentsdb-json"),
    ),
    option("points", "number of different points", positive_number(100_000)),
    option("series", "number of series", positive_number(400, most=1_000_000)),
    option("step", "seconds between points of a series", positive_number(10, most=86_400)),
    option(
        "generate.start",
        "time of the first points; with `now` each run generates different bytes",
        text("2026-01-01"),
    ),
    option("jitter_ms", "maximum delay of points after their step, in ms", whole_number(0, most=86_400_000)),
    option("late", "share of points that are sent late", number(0.0, most=1.0)),
    option("late_steps", "maximum delay of late points, in steps", positive_number(60, most=1_000_000)),
    option("duplicates", "share of points that are sent twice", number(0.0, most=1.0)),
    option("corrections", "share of points that are sent again with another value", number(0.0, most=1.0)),
    option("poison", "share of records that cannot be stored", number(0.0, most=1.0)),
    option("seed", "the same seed gives the same bytes", whole_number(1)),
    option("generate.topic", "Pub/Sub topic to publish to: projects/P/topics/T"),
    option("rate", "points per second into the topic; by default as fast as possible", number(most=1e9)),
    option("points_per_message", "lines per message", positive_number(1, most=1_000_000)),
    option("expect", "file for the points that a correct pipeline stores, as CSV"),
    # copy
    option(
        "copy.start",
        "first time: 30d-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970",
        required=True,
        regex=TIME,
        example="2026-11-01",
    ),
    option("copy.end", "last time, in the forms of --start", text("now"), regex=TIME, example="2026-11-21"),
    option("from", "layout to read", choice(f"{_STORES}|{DECLARED}"), required=True),
    option("to", "layout to write", choice(_STORES), required=True),
    option(
        "also",
        "from opentsdb to opentsdb: also copy rollups, meta or trees; rollups include pre-aggregates, "
        "and --rollup-config names their tables",
        SEVERAL,
        regex="(rollups|meta|trees)(,(rollups|meta|trees))*",
        example="rollups",
    ),
    option("verify_only", "compare both layouts, and copy nothing", FLAG),
    # layout
    option("layout.layout", "heat: layout to plot; by default all layouts of the file"),
    option("layout.output", "heat: file of the plot, .png", text("heat.png")),
    option("layout.input", "heat: sample of the records: .csv with a header, .avro, otherwise JSON lines"),
    # plan
    option(
        "plan.flush_seconds", "seconds that a stream gathers points, as in ingest", number(30.0, most=86_400)
    ),
    option("plan.summary", "output form", choice("text|json", "text")),
    option("plan.series", "number of series", positive_number(most=10**12), required=True),
    option("plan.points_per_message", "points of one series per message", positive_number(1, most=100_000)),
    option("plan.tags", "tags per series", positive_number(4, most=100)),
    option(
        "plan.interval",
        "time between points of a series: 10s, 1m, 500ms",
        {"kind": duration, "default": "10s"},
    ),
    option("plan.retention", "time for which points are kept: 30d, 1y", {"kind": duration, "default": "30d"}),
    option(
        "metrics", "number of metrics, each with the same number of series", positive_number(100, most=10**12)
    ),
    option(
        "tag_values",
        "number of tag values of all keys; by default one per series of a metric",
        positive_number(most=10**12),
    ),
    option(
        "name_length",
        "characters per name; layouts without UIDs store names in keys",
        positive_number(12, most=4096),
    ),
    option("values", "kind of values", choice("integers|decimals|mixed", "mixed")),
    option("storage", "storage of the nodes", choice("ssd|hdd", "ssd")),
    option("node_price", "price per node and hour, to estimate the monthly cost", number()),
    option("gb_price", "price per stored GB and month", number()),
    option("core_price", "price per core of workers and hour", number()),
    option("shuffle_price", "price per shuffled GB", number()),
)
