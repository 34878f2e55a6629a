"""The commands that keep stored series up: rollups, compaction, index tables, metadata, trees."""

from __future__ import annotations

from timebeam.pipelines.options.command_line import Argument, Command
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    CENTURY_DAYS,
    LAYOUT,
    LETTERS,
    MAX_REFUSED,
    PREFLIGHT,
    ROLLUP_CONFIG,
    SUMMARY,
    TABLES,
    Parameter,
    boolean,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.period import ZONE, range_parameters
from timebeam.schema.core.point_fragments import Packing

_A_PROCESS = "a process follows, not a job on Dataflow"

ROLLUP_COMMAND = Command(
    "rollup",
    "Makes the rollups and pre-aggregates of a day or range.",
    job="timebeam.pipelines.rollup.jobs:job_of",
    takes_archive=True,
    parameters=(
        ROLLUP_CONFIG,
        *range_parameters(
            "Rollup",
            "day to roll up, such as 2026-11-20; by default the last complete day",
            "end of the range, exclusive",
            "1h-ago",
        ),
        ZONE,
        Parameter(
            "delay_hours",
            "hours after the end of a day until it is complete",
            "Rollup",
            not_negative,
            0.0,
            most=24 * CENTURY_DAYS,
            setting=True,
        ),
        Parameter(
            "allow_incomplete",
            "accept a day or range that is not over yet; run it again when it is",
            "Rollup",
            boolean,
            False,
        ),
        Parameter(
            "touched",
            "only hours and metrics that are marked since their last rollup (ingest --mark_touched)",
            "Rollup",
            boolean,
            False,
            local="the program clears the marks when it has seen the job end",
        ),
        Parameter(
            "follow",
            "run until it is stopped, in rounds that roll up marked hours (needs --marked_since)",
            "Follow",
            boolean,
            False,
            local=_A_PROCESS,
        ),
        Parameter(
            "every_seconds",
            "follow: seconds from the end of a round to the next one, unless hours wait",
            "Follow",
            not_negative,
            60.0,
            most=86_400,
            local=_A_PROCESS,
            setting=True,
        ),
        Parameter(
            "rounds",
            "follow: end after so many rounds; by default never",
            "Follow",
            positive,
            local=_A_PROCESS,
        ),
        Parameter(
            "quiet_seconds",
            "follow: seconds that an hour waits after its end and after its last mark",
            "Follow",
            not_negative,
            60.0,
            most=86_400,
            local=_A_PROCESS,
            setting=True,
        ),
        Parameter(
            "lease_seconds",
            "follow: seconds until another process may take over a round's hours; more than a round takes",
            "Follow",
            not_negative,
            600.0,
            most=86_400,
            local=_A_PROCESS,
            setting=True,
        ),
        Parameter(
            "most_hours",
            "follow: hours in a round at most, of all metrics together; the others wait for the next one",
            "Follow",
            positive,
            10_000,
            local=_A_PROCESS,
            setting=True,
        ),
        Parameter(
            "lookback_days",
            "also redo this many days before it, for late points",
            "Rollup",
            whole,
            0,
            most=CENTURY_DAYS,
            setting=True,
        ),
        Parameter(
            "dead_letters",
            "destination of rows that cannot be rolled up: files PREFIX-TIME-*.jsonl, or a topic",
            "Rollup",
            default="dead-letters",
            regex=LETTERS,
            example="gs://my-bucket/dead-letters/rollup",
            setting=True,
        ),
        *LAYOUT,
        TABLES,
        *BIGTABLE,
        Parameter(
            "dry_run",
            "print what would be read and written; do nothing",
            "Run",
            boolean,
            False,
            local="it starts no job",
        ),
        PREFLIGHT,
        SUMMARY,
        MAX_REFUSED,
    ),
    examples="""\
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json
  timebeam rollup --layout opentsdb --rollup_config rollups.json --day 2026-11-20 --lookback_days 2
  timebeam rollup --layout opentsdb --rollup_config rollups.json --start 6h-ago --end 1h-ago
  timebeam rollup --layout opentsdb --rollup_config rollups.json --touched
  timebeam rollup --layout opentsdb --rollup_config rollups.json --follow --quiet_seconds 120

a repeated run gives the same result; Beam's own options can be given too""",
)

COMPACT_COMMAND = Command(
    "compact",
    "Merges the cells of each row of closed hours into one.",
    job="timebeam.pipelines.store.compact:job_of",
    takes_archive=True,
    parameters=(
        *range_parameters(
            "Compact",
            "day in UTC, such as 2026-11-20; by default the last closed day",
            "end of the range, exclusive; only whole hours are compacted",
            "1d-ago",
        ),
        Parameter(
            "closed_hours",
            "hours after the end of an hour until it is closed",
            "Compact",
            not_negative,
            1.0,
            most=24 * CENTURY_DAYS,
        ),
        Parameter(
            "form",
            "write compacted columns, or the append column (for tables that a TSD appends to)",
            "Compact",
            default=Packing.COMPACTED.value,
            choices=(Packing.COMPACTED.value, Packing.APPEND.value),
        ),
        *LAYOUT,
        *BIGTABLE,
        Parameter("dry_run", "count what would change; write nothing", "Run", boolean, False),
        SUMMARY,
    ),
    examples="""\
  timebeam compact --layout opentsdb --dry_run
  timebeam compact --layout opentsdb --day 2026-11-20
  timebeam compact --layout opentsdb --start 30d-ago --end 1d-ago --salt_width 1

queries return the same before and after; cell timestamps change their meaning:
see docs/how-to/store/compact.md

Beam's own options can be given too""",
)

REINDEX_COMMAND = Command(
    "reindex",
    "Rebuilds the index tables; safe to repeat.",
    job="timebeam.pipelines.store.reindex:job_of",
    parameters=(
        *LAYOUT,
        *BIGTABLE,
        Parameter("dry_run", "read and count; write nothing", "Run", boolean, False),
        SUMMARY,
    ),
    examples="""\
  timebeam reindex --layout heroic --project my-project --instance my-instance
  timebeam reindex --layout kairosdb --row_spec milliseconds --dry_run

all of Beam's options can be given too""",
)

META_COMMAND = Command(
    "meta",
    "Creates missing metadata of series and names; safe to repeat.",
    job="timebeam.pipelines.jobs.meta:job_of",
    arguments=(
        Argument("action", choices=["sync"], help="create missing metadata, as `tsdb uid metasync` does"),
    ),
    parameters=(
        Parameter(
            "count",
            "count the points of each series into ts_ctr; reads all points",
            "Meta",
            boolean,
            False,
        ),
        Parameter("purge", "afterwards list the metadata of series without points", "Meta", boolean, False),
        Parameter("yes", "with --purge: delete the listed metadata", "Meta", boolean, False),
        *LAYOUT,
        *BIGTABLE,
        Parameter("dry_run", "count what would be written; write nothing", "Run", boolean, False),
        SUMMARY,
    ),
    examples="""\
  timebeam meta sync --layout opentsdb --dry_run
  timebeam meta sync --layout opentsdb --salt_width 1 --project my-project --instance my-instance
  timebeam meta sync --layout opentsdb --count
  timebeam meta sync --layout opentsdb --purge           # lists; with --yes too: removes
  timebeam meta sync --layout opentsdb --runner DataflowRunner --region europe-west1 ...

existing metadata is not changed, except ts_ctr with --count; Beam's own options can be given too""",
)

_LAYOUT_OPTIONS = (
    "table_prefix",
    "salt_width",
    "salt_buckets",
    "uid_width_metric",
    "uid_width_tagk",
    "uid_width_tagv",
    "max_tags",
    "names",
)

TREE_OUTPUTS = "text, json, html, FILE.txt, FILE.json, FILE.html"

TREES_COMMAND = Command(
    "trees",
    "Places series in OpenTSDB's trees, by rules.",
    runs="timebeam.pipelines.trees.actions:run",
    job="timebeam.pipelines.trees.sync:job_of",
    job_action="sync",
    arguments=(
        Argument(
            "action", choices=["create", "show", "test", "sync", "purge"], help="what to do; see the examples"
        ),
        Argument(
            "argument",
            nargs="*",
            help="create: the file with the tree; test: the series, as metric tag=value ..., or a TSUID",
        ),
    ),
    parameters=(
        Parameter(
            "tree",
            "show, test, sync, purge: id or name of one tree; by default all, for sync all enabled ones",
            "Trees",
        ),
        Parameter("yes", "purge: delete what it counts", "Trees", boolean, False),
        Parameter(
            "exact", "create: also delete stored rules that are not in the file", "Trees", boolean, False
        ),
        Parameter(
            "output", f"show: one of {TREE_OUTPUTS}; create, test, purge: text, json", "Trees", default="text"
        ),
        Parameter("depth", "show as text: number of branch levels", "Trees", positive),
        Parameter("definition", "test: use the trees in this file, not the stored ones", "Trees"),
        Parameter(
            "series",
            "sync: read series from the meta table or from the keys of the data table; by default "
            "from the meta table unless it is missing or empty",
            "Trees",
            choices=("meta", "data"),
        ),
        Parameter(
            "dead_letters",
            "sync: destination of series that cannot be placed: files PREFIX-TIME-*.jsonl, or a "
            "topic projects/P/topics/T",
            "Trees",
            default="dead-letters",
            setting=True,
        ),
        Parameter(
            "layout",
            "layout with trees",
            "Layout",
            default="opentsdb",
            choices=("opentsdb",),
            setting=True,
        ),
        *(parameter for parameter in LAYOUT if parameter.name in _LAYOUT_OPTIONS),
        *BIGTABLE,
        Parameter("dry_run", "create, sync: print what would be done; write nothing", "Run", boolean, False),
        SUMMARY,
        MAX_REFUSED,
    ),
    examples="""\
  timebeam tables create --layout opentsdb --meta --trees
  timebeam trees test --definition tree.json sys.cpu.0 host=web01 dc=lga
  timebeam trees create tree.json
  timebeam trees sync --dry_run
  timebeam trees sync
  timebeam trees show
  timebeam trees show --tree hosts --depth 2
  timebeam trees show --output trees.html
  timebeam trees purge --tree hosts        # counts what its rules would not make; with --yes: deletes
  timebeam trees test --tree 1 000001000001000001

a tree file has the fields of /api/tree, and in `rules` those of /api/tree/rule: see docs/how-to/trees.md;
sync also takes Beam's own options""",
)
