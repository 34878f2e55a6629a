"""The commands that keep stored series up: names, rollups, compaction, metadata, deletion, archive."""

from __future__ import annotations

from timebeam.pipelines.options.command_line import Argument, Command

NAMES_COMMAND = Command(
    "names",
    "Lists, renames, merges, frees and fixes the names in OpenTSDB's UID table.",
    usage="list [KIND [PREFIX]] [options]\nrename|merge KIND OLD NEW [options]\nfree|fix [options]",
    common="""
        Names: use wait_hours yes rollup_config output |
        Tables: layout table_prefix set project instance
    """,
    page="docs/use/names.md",
    runs="timebeam.pipelines.store.edit_names:run",
    arguments=(
        Argument("action", choices=["list", "rename", "merge", "free", "fix"], help="what to do"),
        Argument("argument", nargs="*", help="list: KIND PREFIX, or nothing; rename, merge: KIND OLD NEW"),
    ),
    options="""
        Names: use wait_hours yes |
        Rollup: rollup_config |
        Names: output |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile
    """,
    examples="""\
  timebeam names list --layout opentsdb
  timebeam names rename metrics sys.cpu system.cpu --layout opentsdb --yes
  timebeam names fix --layout opentsdb --yes
  timebeam names list metrics sys. --layout opentsdb --use
  timebeam names merge metrics sys.load1 sys.load --layout opentsdb --yes
  timebeam names free --layout opentsdb            # prints; with --yes too: frees

KIND is metrics, tagk or tagv; OLD of merge may be a UID in hex
TSDs and other writers keep names in memory: see docs/use/names.md""",
)

CARDINALITY_COMMAND = Command(
    "cardinality",
    "Shows which metrics, tag keys and tag values have the most series, and the most new ones.",
    usage="[--metric PATTERN] [options]",
    common="""
        Series: metric top by since rejected output |
        Tables: layout tables table_prefix set project instance
    """,
    page="docs/use/names.md",
    runs="timebeam.pipelines.store.cardinality:run",
    options="""
        Series: metric top by since source rejected output |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile
    """,
    examples="""\
  timebeam cardinality --layout opentsdb
  timebeam cardinality --layout opentsdb --by growth --since 1h-ago --top 5
  timebeam cardinality --layout opentsdb --metric 'app.*' --output app.png
  timebeam cardinality --layout opentsdb --rejected 'dead-letters-*.jsonl' --output json""",
)

META_COMMAND = Command(
    "meta",
    "Creates missing metadata of series and names; safe to repeat.",
    usage="sync [options]",
    common="""
        Metadata: count purge yes |
        Tables: layout table_prefix set project instance |
        Run: dry_run summary
    """,
    page="docs/use/names.md",
    job="timebeam.pipelines.store.rebuild:meta_job",
    arguments=(
        Argument("action", choices=["sync"], help="create missing metadata, as `tsdb uid metasync` does"),
    ),
    options="""
        Meta: count purge yes |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile |
        Run: dry_run summary
    """,
    examples="""\
  timebeam meta sync --layout opentsdb --dry-run
  timebeam meta sync --layout opentsdb --set salt_width=1 --project my-project --instance my-instance
  timebeam meta sync --layout opentsdb --count
  timebeam meta sync --layout opentsdb --purge           # lists; with --yes too: removes
  timebeam meta sync --layout opentsdb --runner DataflowRunner --region europe-west1 ...

existing metadata is not changed, except ts_ctr with --count; Beam's own options can be given too""",
)

TREES_COMMAND = Command(
    "trees",
    "Places series in OpenTSDB's trees, by rules.",
    usage="create FILE | test METRIC KEY=VALUE ... [options]\nshow|sync|purge [--tree TREE] [options]",
    common="""
        Trees: tree definition depth exact yes output |
        Tables: table_prefix set project instance |
        Run: dry_run max_rejected
    """,
    page="docs/use/names.md",
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
    options="""
        Trees: tree yes exact output depth definition series dead_letters |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile |
        Run: dry_run summary max_rejected
    """,
    examples="""\
  timebeam trees create tree.json
  timebeam trees sync --dry-run
  timebeam trees test --definition tree.json sys.cpu.0 host=web01 dc=lga
  timebeam tables create --layout opentsdb --meta --trees
  timebeam trees sync
  timebeam trees show
  timebeam trees show --tree hosts --depth 2
  timebeam trees show --output trees.html
  timebeam trees purge --tree hosts        # counts what its rules would not make; with --yes: deletes
  timebeam trees test --tree 1 000001000001000001

a tree file has the fields of /api/tree, and in `rules` those of /api/tree/rule: see docs/use/names.md;
sync also takes Beam's own options""",
)

DELETE_COMMAND = Command(
    "delete",
    "Deletes points, after a dry run that shows what would be deleted.",
    usage="METRIC --start TIME [--end TIME] [options]\n--keep-days DAYS ... [options]",
    common="""
        Delete: start end tag tsuid series token log |
        Retention: keep_days rollup_config unattended |
        Tables: layout tables table_prefix set project instance |
        Run: dry_run
    """,
    page="docs/operate/maintenance.md",
    job="timebeam.pipelines.store.delete:job_of",
    takes_archive=True,
    arguments=(Argument("metric", nargs="?", metavar="METRIC", help="name of the metric; not with --tsuid"),),
    options="""
        Delete: start end tag explicit_tags tsuid full_scan |
        Retention: keep_days rollup_config unattended |
        Delete: token log series annotations keep_rollups |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile |
        Run: dry_run summary
    """,
    examples="""\
  timebeam delete sys.load --layout opentsdb --start 2026-11-01 --end 2026-11-02
  timebeam delete sys.load --layout opentsdb --start 2026-11-01 --end 2026-11-02 --token TOKEN
  timebeam delete sys.load --layout opentsdb --start 30d-ago --end 1d-ago --tag 'host=web*' --tag dc=lga
  timebeam delete --layout opentsdb --keep-days 'debug.*=7' --keep-days 400 --keep-rollups

both ends of the time range are inclusive; a repeated run with the same token and log completes one that was
interrupted; Beam's own options can be given too""",
)

REINDEX_COMMAND = Command(
    "reindex",
    "Rebuilds the index tables; safe to repeat.",
    usage="[--layout LAYOUT] [options]",
    common="""
        Tables: layout table_prefix set project instance |
        Run: dry_run summary
    """,
    page="docs/operate/maintenance.md",
    job="timebeam.pipelines.store.rebuild:reindex_job",
    options="""
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile |
        Run: dry_run summary
    """,
    examples="""\
  timebeam reindex --layout heroic --project my-project --instance my-instance
  timebeam reindex --layout kairosdb --set row_spec=milliseconds --dry-run

all of Beam's options can be given too""",
)

ROLLUP_COMMAND = Command(
    "rollup",
    "Makes the rollups and pre-aggregates of a day or range.",
    usage="--rollup-config FILE [--day DAY] [options]\n--rollup-config FILE --changed|--follow [options]",
    common="""
        Rollup: rollup_config day start end changed follow delay_hours lookback_days dead_letters |
        Tables: layout tables table_prefix set project instance |
        Run: dry_run preflight
    """,
    page="docs/use/rollups.md",
    job="timebeam.pipelines.rollup.roll_up_points:job_of",
    takes_archive=True,
    options="""
        Rollup: rollup_config day start end zone delay_hours allow_incomplete changed |
        Follow: follow every_seconds rounds quiet_seconds lease_seconds most_hours |
        Rollup: lookback_days dead_letters |
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile |
        Run: dry_run preflight summary max_rejected
    """,
    examples="""\
  timebeam tables create --layout opentsdb --rollup-config rollups.json
  timebeam rollup --layout opentsdb --rollup-config rollups.json
  timebeam rollup --layout opentsdb --rollup-config rollups.json --day 2026-11-20 --lookback-days 2
  timebeam rollup --layout opentsdb --rollup-config rollups.json --start 6h-ago --end 1h-ago
  timebeam rollup --layout opentsdb --rollup-config rollups.json --changed
  timebeam rollup --layout opentsdb --rollup-config rollups.json --follow --quiet-seconds 120

a repeated run gives the same result; Beam's own options can be given too""",
)

COMPACT_COMMAND = Command(
    "compact",
    "Merges the cells of each row of closed hours into one.",
    usage="[--day DAY | --start TIME --end TIME] [options]",
    common="""
        Compact: day start end form |
        Tables: layout table_prefix set project instance |
        Run: dry_run summary
    """,
    page="docs/operate/maintenance.md",
    job="timebeam.pipelines.store.closed_hours:compact_job",
    takes_archive=True,
    options="""
        Compact: day start end closed_hours form |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile |
        Run: dry_run summary
    """,
    examples="""\
  timebeam compact --layout opentsdb --dry-run
  timebeam compact --layout opentsdb --day 2026-11-20
  timebeam compact --layout opentsdb --start 30d-ago --end 1d-ago --set salt_width=1

queries return the same before and after; cell timestamps change their meaning:
see docs/operate/maintenance.md

Beam's own options can be given too""",
)

ARCHIVE_COMMAND = Command(
    "archive",
    "Moves closed hours into the archive, in compressed columns; safe to repeat.",
    usage="[--older-than AGE] [options]",
    common="""
        Archive: older_than start quiet_hours delete_source reader_hours |
        Tables: layout table_prefix set project instance |
        Run: dry_run summary
    """,
    page="docs/operate/maintenance.md",
    job="timebeam.pipelines.store.closed_hours:archive_job",
    takes_archive=True,
    options="""
        Archive: older_than start quiet_hours delete_source reader_hours |
        Layout: layout table_prefix set |
        Bigtable: project instance app_profile |
        Run: dry_run summary
    """,
    examples="""\
  timebeam tables create --layout opentsdb --archive
  timebeam archive --layout opentsdb --dry-run
  timebeam archive --layout opentsdb --older-than 30d
  timebeam archive --layout opentsdb --older-than 30d --delete-source

with --delete-source run it daily: each run deletes what an earlier one has archived;
see docs/operate/maintenance.md

Beam's own options can be given too""",
)
