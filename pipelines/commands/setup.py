"""The commands around tables and this machine: settings, tables, a local emulator, test points."""

from __future__ import annotations

from timebeam.pipelines.options.command_line import Argument, Command

INIT_COMMAND = Command(
    "init",
    "Writes timebeam.toml into this folder; asks nothing.",
    runs="timebeam.pipelines.commands.settings:init",
    options="Init: project instance layout",
    examples="""\
  timebeam init
  timebeam init --project my-project --instance my-instance""",
)

CONFIG_COMMAND = Command(
    "config",
    "Prints every setting and where it comes from.",
    runs="timebeam.pipelines.commands.settings:config",
    options="""
        Settings: config profile |
        Output: output
    """,
    examples="""\
  timebeam config
  timebeam config --profile prod --output json

precedence: option of the command, variable TIMEBEAM_NAME, profile, settings file, settings stored with the
tables, default""",
)

EMULATOR_COMMAND = Command(
    "emulator",
    "Runs Google's Bigtable emulator in the foreground; builds it first if there is none.",
    runs="timebeam.pipelines.local.emulator:run",
    options="Emulator: port build_only",
    examples="""\
  timebeam emulator                 on the port that gcloud uses too, 8086
  timebeam emulator --port 0        on any free port
  timebeam emulator --build_only    only build it, for an image or a CI cache""",
)

GENERATE_COMMAND = Command(
    "generate",
    "Generates test points, including late, duplicate, corrected and bad ones.",
    runs="timebeam.pipelines.local.generate:run",
    options="""
        Load: points series format step start jitter_ms late late_steps duplicates corrections
            poison seed |
        Output: output topic rate points_per_message expect |
        Run: summary
    """,
    examples="""\
  timebeam generate --points 1000000 --output points.json.gz
  timebeam generate --format influx --late 0.01 --corrections 0.01 --poison 0.001 \\
      --output points.lp --expect expected.csv
  timebeam generate --topic projects/my-project/topics/points --start now --rate 5000""",
)

COMPLETION_COMMAND = Command(
    "completion",
    "Prints a script that completes command lines.",
    runs="timebeam.pipelines.commands.settings:completion",
    arguments=(Argument("shell", choices=("bash", "zsh", "fish"), help="for which shell"),),
    examples="""\
  timebeam completion bash > ~/.local/share/bash-completion/completions/timebeam
  timebeam completion zsh > ~/.zfunc/_timebeam       with this in ~/.zshrc: fpath+=~/.zfunc; compinit
  timebeam completion fish > ~/.config/fish/completions/timebeam.fish""",
)

TABLES_COMMAND = Command(
    "tables",
    "Creates the tables of a layout, adopts those of another system, forgets their settings, or shows and "
    "sets retention; safe to repeat.",
    runs="timebeam.pipelines.tables.tables:run",
    layouts=(),
    arguments=(
        Argument(
            "action",
            choices=["create", "adopt", "forget", "retention"],
            help="create: create missing tables; adopt: store the settings of tables that another system "
            "made; forget: remove the stored settings of a layout, its tables stay; retention: show or set "
            "the maximum age of cells",
        ),
    ),
    takes_archive=True,
    options="""
        Layout: layout table_prefix *layout tables zone rollup_config meta trees series_limits |
        Retention: max_age_days table family |
        Adopt: rows |
        Bigtable: project instance app_profile |
        Run: output dry_run
    """,
    examples="""\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout table --tables market.toml
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam tables create --layout opentsdb --meta --trees
  timebeam tables create --layout opentsdb --table_prefix test- --dry_run   (with an emulator)
  timebeam tables adopt --layout opentsdb --salt_width 1   (tables that a TSD made)
  timebeam tables forget --layout kairosdb --dry_run
  timebeam tables retention --layout opentsdb
  timebeam tables retention --layout opentsdb --max_age_days 400 --dry_run
  timebeam tables retention --layout kairosdb --retention 7,90 --family d7 --max_age_days 7""",
)

CHECK_COMMAND = Command(
    "check",
    "Verifies that every row decodes, and that names and UIDs map one to one.",
    runs="timebeam.pipelines.tables.check:run",
    takes_archive=True,
    options="""
        Layout: layout table_prefix *layout tables |
        Bigtable: project instance app_profile |
        Run: output most
    """,
    examples="""\
  timebeam check --layout opentsdb --project my-project --instance my-instance
  timebeam check --layout opentsdb --salt_width 1 --most 1000
  timebeam check --layout table --tables market.toml""",
)

PLAN_COMMAND = Command(
    "plan",
    "Estimates what a load of points needs, for each packing.",
    runs="timebeam.pipelines.tables.plan:run",
    takes_archive=True,
    options="""
        Load: series interval retention metrics tags tag_values name_length values
            points_per_message flush_seconds |
        Layout: layout table_prefix *layout -retention -retention_class |
        Bigtable: storage node_price gb_price |
        Dataflow: core_price shuffle_price |
        Run: summary
    """,
    examples="""\
  timebeam plan --series 1000000 --interval 10s --layout opentsdb --retention 30d
  timebeam plan --series 1000000 --layout opentsdb --salt_width 1 --salt_buckets 20 --points_per_message 6
  timebeam plan --series 50000 --interval 1s --layout heroic --name_length 20 --summary json
  timebeam plan --series 200000 --layout kairosdb --node_price 0.65 --gb_price 0.17

bytes are measured on a sample, before compression; docs/how-to/sizing.md explains the output""",
)

LAYOUT_COMMAND = Command(
    "layout",
    "Explains tables declared in TOML, or plots how writes spread over their keys.",
    runs="timebeam.pipelines.tables.layout:run",
    arguments=(
        Argument("action", choices=["check", "heat"], help="check: explain the tables; heat: plot key heat"),
        Argument("file", help="the declaration, a TOML file"),
    ),
    options="""
        Heat: input layout output |
        Run: summary
    """,
    examples="""\
  timebeam layout check examples/tables/market.toml
  timebeam layout heat examples/tables/battery_salted.toml --input examples/tables/battery.jsonl""",
)
