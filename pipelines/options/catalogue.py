"""The catalogue of all options: each is declared once, and commands choose by name.

What an option does, its values and its default stand in `writing_options` and `reading_options`; those of
layouts and message formats are declared beside them in schema/. Here is which options are settings, and which
are no parameters of templates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from timebeam.pipelines.options import reading_options, writing_options
from timebeam.pipelines.options.parameters import Parameter, declared_parameters, usage_errors

OPTIONS: Mapping[str, Parameter] = dict(writing_options.OPTIONS + reading_options.OPTIONS)
"""By name, or by COMMAND.NAME for what one command alone means by it."""

SETTINGS = """
    layout table_prefix *layout tables project instance app_profile rollup_config dead_letters packing
    auto_create_metrics auto_create_tagks auto_create_tagvs random_metrics uid_cache_size uid_snapshot_size
    uid_negative_seconds bigtable_writer mark_changed keep_days log format flush_seconds *format
    records_encoding overflow_tag drop_tags keep_tags max_new_series max_series max_tag_values max_all_series
    formats timezone zone delay_hours every_seconds quiet_seconds lease_seconds most_hours lookback_days topic
"""
"""What a settings file and a variable may give too, in the order of `timebeam config`."""

_WITHOUT_SETTINGS = ("generate", "init", "layout", "plan")
"""Commands whose own options are none, also if they have the name of one."""

_LOCAL = {
    "the launcher sets it to the project in which the job runs": "project",
    "its temporary subscription ends with the job, and messages between two jobs are lost": "input_topic",
    "local runners only": "stop_when_idle",
    "a job on Dataflow prints none": "summary",
    "a job on Dataflow outlives the program": "max_rejected",
    "it starts no job": "preflight rollup.dry_run",
    "the program compares by itself and starts no job": "verify_only verify",
    "the program deletes by itself what refers to the series": "delete.series",
    "the program clears the marks when it has seen the job end": "changed",
    "a process follows, not a job on Dataflow": "follow rounds every_seconds quiet_seconds lease_seconds "
    "most_hours",
}
"""Why an option is that of the command alone and not a parameter of templates; and which."""

_REASONS = {name: reason for reason, names in _LOCAL.items() for name in names.split()}

TO = "to_"
"""How the options of the layout that `copy` writes begin."""


@functools.cache
def chosen(command: str, text: str) -> Sequence[Parameter]:
    """The options that a command has, in their order.

    >>> [f"{each.group}: {each.name}" for each in chosen("compact", "Bigtable: project | Run: dry_run")]
    ['Bigtable: project', 'Run: dry_run']

    Args:
      text: `GROUP: NAME NAME ... | GROUP: ...`. `*layout` stands for what layouts declare, `*stored` for what
        of it is stored with the tables, `*written` for the others, `*to_written` for the same of the layout
        that `copy` writes, and `*format` for what message formats declare.

    Raises:
      KeyError: there is no such option.
    """
    return tuple(
        dataclasses.replace(_find(command, name), group=group)
        for group, _, names in (part.strip().partition(":") for part in text.split("|"))
        for name in _expanded(names)
    )


def setting_parameters() -> dict[str, Parameter]:
    """The options that a settings file may give, by name."""
    return {name: _find("", name) for name in _expanded(SETTINGS)}


def layout_parameters() -> Sequence[Parameter]:
    """The options of layouts: `layout`, `table_prefix`, and what layouts declare."""
    return chosen("", "Layout: layout table_prefix *layout")


def settable_parameters(names: Collection[str]) -> dict[str, Parameter]:
    """The options of layouts that a command has without options of their own, by name.

    Those that are stored with the tables are given by `--set`, those of the layout that `copy` writes by
    `--to-set`.

    Args:
      names: of the options of the command.
    """
    sides = {"set": "*layout", "to_set": "*to_layout"}
    return {
        name: each
        for option, word in sides.items()
        if option in names
        for name, each in _declared(word).items()
        if name not in names
    }


def format_parameters() -> Sequence[Parameter]:
    """The options of message formats, and that of records."""
    return chosen("", "Format: *format records_encoding")


_CHOOSERS = {"format": "format", "formats": "format", "layout": "layout", "from": "layout", "to": "layout"}
"""The options that choose a format, or a store, which may be of another package."""


def plugin_parameters(owner: str, names: Collection[str]) -> Sequence[Parameter]:
    """The options of formats, or stores, of other packages; none of ours.

    Args:
      owner: `format` or `layout`.
      names: of some, ours and others among them.

    Raises:
      UsageError: a package cannot be used.
    """
    others = [name for name in names if is_plugin(owner, name)]
    if not others:
        return ()
    with usage_errors():
        if owner == "format":
            from timebeam.schema.formats import plugin_options

            declared = {name: plugin_options(name) for name in others}
        else:
            from timebeam.schema.stores import declared_options

            declared = {name: declared_options(name) for name in others}
    group = owner.capitalize()
    return [dataclasses.replace(each, group=group) for each in declared_parameters(owner, declared).values()]


def with_plugins(parameters: Sequence[Parameter], chosen_by: Mapping[str, Sequence[str]]) -> list[Parameter]:
    """The options of a command, with those of formats and stores of other packages that are chosen.

    Args:
      chosen_by: the names that each of `_CHOOSERS` is given.

    Raises:
      UsageError: see `plugin_parameters`; or an option of theirs is one of the command.
    """
    extended = {each.name: each for each in parameters}
    for option in choosers(parameters):
        chooser, owner, before = extended[option], _CHOOSERS[option], TO if option == "to" else ""
        names = chosen_by.get(option, ())
        if chooser.choices:
            others = [name for name in names if is_plugin(owner, name)]
            extended[option] = dataclasses.replace(chooser, choices=(*chooser.choices, *others))
        for each in plugin_parameters(owner, names):
            name = before + each.name
            extended[name] = dataclasses.replace(each, name=name, group=chooser.group, setting=False)
    return [*extended.values()]


def choosers(parameters: Collection[Parameter]) -> list[str]:
    """The names of those options that choose a format, or a store, which may be of another package."""
    return [each.name for each in parameters if each.name in _CHOOSERS and (each.setting or each.required)]


def is_plugin(owner: str, name: str) -> bool:
    """Whether another package has a format, or a store, of this name; raises UsageError if two have."""
    if name in (*OPTIONS["format" if owner == "format" else "layout"].choices, ""):
        return False
    from timebeam.schema.core.plugins import FORMAT_GROUP, STORE_GROUP, find_plugin

    with usage_errors():
        return find_plugin(FORMAT_GROUP if owner == "format" else STORE_GROUP, name) is not None


def plugin_packages(values: Mapping[str, Any]) -> list[str]:
    """The other packages whose formats and stores the options of a command name.

    Args:
      values: of the options, by name.
    """
    from timebeam.schema.core.plugins import FORMAT_GROUP, STORE_GROUP, find_plugin

    found = set()
    for option, owner in _CHOOSERS.items():
        chosen_by = values.get(option) or ()
        for text in (chosen_by,) if isinstance(chosen_by, str) else chosen_by:
            for name in text.split(","):
                if is_plugin(owner, name):
                    found.add(find_plugin(FORMAT_GROUP if owner == "format" else STORE_GROUP, name))
    return sorted({plugin.package for plugin in found if plugin is not None})


@functools.cache
def _declared(word: str) -> dict[str, Parameter]:
    """The options by name that a word of `chosen` stands for; asked for late, as these imports take long."""
    if word == "*format":
        from timebeam.schema.formats.options import FormatOptions

        return declared_parameters("format", {"": FormatOptions.declared()})
    if word == "*layout":
        from timebeam.schema.stores import STORES, declared_options

        return declared_parameters("layout", {name: declared_options(name) for name in STORES})
    if word.startswith("*to_"):
        return {
            TO + name: dataclasses.replace(each, name=TO + name, shown_for=None, setting=False)
            for name, each in _declared(f"*{word.removeprefix('*to_')}").items()
        }
    is_stored = word == "*stored"
    return {name: each for name, each in _declared("*layout").items() if each.stored == is_stored}


def _expanded(text: str) -> Sequence[str]:
    """The names in a text, those of layouts and formats too."""
    names: list[str] = []
    for word in text.split():
        names += _declared(word) if word.startswith("*") else [word]
    return names


def _find(command: str, name: str) -> Parameter:
    """The option of a command, with what the lists above say of it; raises KeyError."""
    own = f"{command}.{name}"
    key = own if own in OPTIONS else name
    if key in OPTIONS:
        is_setting = name in SETTINGS.split() and not (key == own and command in _WITHOUT_SETTINGS)
        return dataclasses.replace(OPTIONS[key], setting=is_setting, local=_REASONS.get(key, ""))
    words = (word for word in ("*layout", "*to_layout", "*format") if name in _declared(word))
    return _declared(next(words, "*layout"))[name]
