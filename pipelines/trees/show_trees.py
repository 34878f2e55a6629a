"""Trees as text for a terminal, as JSON, and as a page: what `timebeam trees show` prints.

The self-contained page has branches that open, and a filter; it is light or dark. Its policy forbids it to
load anything. Names are in its JSON alone, and the script puts them into the page as text. A branch is drawn
when it is opened, so that large trees open at once.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from timebeam.pipelines.output.html_page import html_page
from timebeam.schema.stores.opentsdb.trees.definitions import Rule, Tree
from timebeam.schema.stores.opentsdb.trees.explain_rules import shown, tree_lines
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries
from timebeam.schema.stores.opentsdb.trees.tree_cells import Branch, Content, Leaf

_SHOWN_FAILURES = 20


class ShownTree(NamedTuple):
    """A tree and what the table holds of it; the series by TSUID, hex, as far as their names are known."""

    tree: Tree
    content: Content
    series: Mapping[str, TreeSeries]


def as_text(trees: Sequence[ShownTree], depth: int | None, *, branches: bool) -> str:
    """The trees with their rules and figures, and the branches and leaves, indented.

    Args:
      depth: only so many levels below the root; None for all.
    """
    return "\n".join(line for tree in trees for line in _lines(tree, depth, branches=branches))


def as_json(trees: Sequence[ShownTree]) -> str:
    """The trees as /api/tree answers, each with its root branch, collisions and series without match."""
    return json.dumps([_document(tree) for tree in trees], ensure_ascii=False, indent=1)


def series_text(shown_tree: ShownTree, tsuid: str) -> str:
    """The name of a series; its TSUID alone if it has none."""
    series = shown_tree.series.get(tsuid)
    return f"{tsuid}  {shown(str(series))}" if series else tsuid


def _lines(shown_tree: ShownTree, depth: int | None, *, branches: bool) -> Iterator[str]:
    content = shown_tree.content
    yield from tree_lines(shown_tree.tree)
    n_branches, leaves, deepest = content.counts()
    yield (
        f"  {n_branches:,} branches on {deepest:,} levels, {leaves:,} leaves, "
        f"{len(content.collisions):,} collisions, {len(content.not_matched):,} series without match"
    )
    for text in content.corruption[:_SHOWN_FAILURES]:
        yield f"  corrupt: {text}"
    if not branches:
        return
    for level, branch in content.root.walk():
        if depth is None or level <= depth:
            yield f"{'  ' * level}{shown(branch.name)}/"
            width = max((len(shown(leaf.name)) for leaf in branch.leaves), default=0)
            for leaf in branch.leaves if depth is None or level < depth else ():
                series = series_text(shown_tree, leaf.tsuid)
                yield f"{'  ' * level}  {shown(leaf.name):{min(width, 40)}}  {series}"
    yield from _failures("collisions: another series has the leaf", shown_tree, content.collisions)
    yield from _failures("without match: these rules failed", shown_tree, content.not_matched)


def _failures(heading: str, shown_tree: ShownTree, failures: Mapping[str, str]) -> Iterator[str]:
    if failures:
        yield heading
        for tsuid, why in list(failures.items())[:_SHOWN_FAILURES]:
            yield f"  {series_text(shown_tree, tsuid)}: {shown(why)}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"  and {len(failures) - _SHOWN_FAILURES:,} more: --output json has them all"


def _document(shown_tree: ShownTree) -> dict[str, Any]:
    tree = shown_tree.tree
    return {
        "treeId": tree.tree_id,
        "name": tree.name,
        "description": tree.description,
        "notes": tree.notes,
        "strictMatch": tree.strict_match,
        "enabled": tree.enabled,
        "storeFailures": tree.store_failures,
        "created": tree.created,
        "rules": {
            str(level): {str(rule.order): _rule(rule) for rule in rules} for level, rules in tree.levels()
        },
        "root": _branch(shown_tree, shown_tree.content.root),
        "collisions": shown_tree.content.collisions,
        "notMatched": shown_tree.content.not_matched,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "type": rule.type.value,
        "field": rule.field,
        "regex": rule.regex,
        "separator": rule.separator,
        "description": rule.description,
        "notes": rule.notes,
        "level": rule.level,
        "order": rule.order,
        "treeId": rule.tree_id,
        "customField": rule.custom_field,
        "regexGroupIdx": rule.regex_group_idx,
        "displayFormat": rule.display_format,
    }


def _branch(shown_tree: ShownTree, branch: Branch) -> dict[str, Any]:
    return {
        "displayName": branch.name,
        "branchId": branch.key.hex().upper(),
        "branches": [_branch(shown_tree, child) for child in branch.branches],
        "leaves": [_leaf(shown_tree, leaf) for leaf in branch.leaves],
    }


def _leaf(shown_tree: ShownTree, leaf: Leaf) -> dict[str, Any]:
    document: dict[str, Any] = {"displayName": leaf.name, "tsuid": leaf.tsuid}
    series = shown_tree.series.get(leaf.tsuid)
    if series:
        document["metric"] = series.metric.name
        document["tags"] = {key.name: value.name for key, value in series.tags}
    return document


def as_page(trees: Sequence[ShownTree], title: str) -> str:
    """The page of some trees."""
    data = [
        {
            "name": shown_tree.tree.name,
            "text": shown_tree.tree.description,
            "root": _page_branch(shown_tree, shown_tree.content.root),
            "failures": [
                *(
                    [tsuid, _name(shown_tree, tsuid), f"collides with {first}"]
                    for tsuid, first in shown_tree.content.collisions.items()
                ),
                *(
                    [tsuid, _name(shown_tree, tsuid), f"no match: {why}"]
                    for tsuid, why in shown_tree.content.not_matched.items()
                ),
            ],
        }
        for shown_tree in trees
    ]
    # No '<' at all, so that neither '</script>' nor '<!--' can end the element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return html_page(title, _STYLE, _BODY.substitute(data=text, script=_SCRIPT))


def _page_branch(shown_tree: ShownTree, branch: Branch) -> list[Any]:
    """[name, branches, leaves of (name, TSUID, series)]."""
    return [
        branch.name,
        [_page_branch(shown_tree, child) for child in branch.branches],
        [[leaf.name, leaf.tsuid, _name(shown_tree, leaf.tsuid)] for leaf in branch.leaves],
    ]


def _name(shown_tree: ShownTree, tsuid: str) -> str:
    series = shown_tree.series.get(tsuid)
    return str(series) if series else ""


_STYLE = """\
:root { --over: #eef2f7; --mark: #ffe28a; --mark-ink: #1d2125; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --over: #232a31; --mark: #6b5300; --mark-ink: #fff; --link: #7ab7f5; }
}
body { max-width: 76rem; }
h2 { margin: 1.4rem 0 .2rem; font-size: 1.05rem; overflow-wrap: anywhere; }
form { position: sticky; top: 0; display: flex; flex-wrap: wrap; gap: .6rem; align-items: center;
  padding: .6rem 0; background: var(--page); border-bottom: 1px solid var(--line); z-index: 1; }
input { flex: 1 1 18rem; font: inherit; padding: .35rem .6rem; color: inherit; background: transparent;
  border: 1px solid var(--soft); border-radius: 5px; }
button { font: inherit; padding: .35rem .8rem; color: inherit; background: var(--over);
  border: 1px solid var(--line); border-radius: 5px; cursor: pointer; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 1px; }
output { color: var(--soft); }
ul { list-style: none; margin: 0; padding: 0 0 0 1.25rem; border-left: 1px solid var(--line); }
.tree > ul { padding-left: 0; border: 0; }
summary, .leaf { padding: .06rem .3rem; border-radius: 4px; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
summary:hover, .leaf:hover { background: var(--over); }
.leaf { padding-left: 1.3rem; }
small { margin-left: .7rem; color: var(--soft); font-weight: normal; }
code { font: 12px ui-monospace, monospace; }
mark { background: var(--mark); color: var(--mark-ink); border-radius: 2px; }
"""

_BODY = string.Template("""\
<noscript><p>A script of this page draws the tree: allow it.</p></noscript>
<form role="search">
<input type="search" aria-label="Filter" placeholder="Filter by words of a branch, leaf, series or TSUID">
<button type="button" id="open">Open all</button>
<button type="button" id="close">Close all</button>
<output aria-live="polite"></output>
</form>
<main></main>
<script type="application/json" id="data">$data</script>
<script>
$script
</script>""")

_SCRIPT = r"""
'use strict';
const trees = JSON.parse(document.getElementById('data').textContent);
const main = document.querySelector('main'), input = document.querySelector('input');
const output = document.querySelector('output');
const MOST_OPENED = 2000, MOST_FOUND = 500;
let words = [];

function element(tag, parent, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

/* Text with the words of the filter marked. */
function marked(parent, text) {
  const lower = text.toLowerCase(), same = lower.length === text.length;
  let at = 0;
  while (at < text.length) {
    let next = -1, size = 0;
    for (const word of same ? words : []) {
      const found = lower.indexOf(word, at);
      if (found >= 0 && (next < 0 || found < next || found === next && word.length > size)) {
        next = found;
        size = word.length;
      }
    }
    if (next < 0) break;
    parent.append(text.slice(at, next));
    element('mark', parent, text.slice(next, next + size));
    at = next + size;
  }
  parent.append(text.slice(at));
}

function count(branch) {
  if (branch[3] === undefined) branch[3] = branch[1].reduce((sum, one) => sum + count(one), branch[2].length);
  return branch[3];
}

function leaves(n) { return n === 1 ? '1 leaf' : n.toLocaleString('en') + ' leaves'; }

function drawLeaf(list, leaf) {
  const line = element('div', element('li', list), undefined, 'leaf');
  marked(line, leaf[0]);
  const more = element('small', line);
  if (leaf[2]) { marked(more, leaf[2]); more.append('  '); }
  marked(element('code', more), leaf[1]);
}

/* A branch, drawn below when it is first opened. */
function drawBranch(list, branch) {
  const details = element('details', element('li', list));
  const summary = element('summary', details);
  marked(summary, branch[0]);
  element('small', summary, leaves(count(branch)));
  details.fill = () => {
    if (details.filled) return;
    details.filled = true;
    const below = element('ul', details);
    branch[1].forEach(one => drawBranch(below, one));
    branch[2].forEach(leaf => drawLeaf(below, leaf));
  };
  details.addEventListener('toggle', () => { if (details.open) details.fill(); });
  return details;
}

function open(details) { details.fill(); details.open = true; }

/* What of a branch has all the words, in its path or below; null if nothing has. */
function found(branch, above, left) {
  const path = above + '\u0000' + branch[0].toLowerCase();
  const branches = [], held = [];
  for (const leaf of branch[2]) {
    if (left.n <= 0) break;
    const text = path + '\u0000' + leaf.slice(0, 3).join('\u0000').toLowerCase();
    if (words.every(word => text.includes(word))) { held.push(leaf); left.n--; }
  }
  for (const one of branch[1]) {
    if (left.n <= 0) break;
    const below = found(one, path, left);
    if (below) branches.push(below);
  }
  return branches.length || held.length ? [branch[0], branches, held] : null;
}

function draw() {
  words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  main.textContent = '';
  const left = {n: MOST_FOUND};
  let shown = 0;
  for (const tree of trees) {
    const root = words.length ? found(tree.root, '', left) : tree.root;
    const has = one => words.every(word => one.join(' ').toLowerCase().includes(word));
    const failures = tree.failures.filter(has);
    if (words.length && !root && !failures.length) continue;
    const section = element('section', main, undefined, 'tree');
    element('h2', section, tree.name);
    if (tree.text) element('p', section, tree.text);
    if (root) {
      shown += count(root);
      open(drawBranch(element('ul', section), root));
    }
    if (failures.length) drawFailures(section, failures);
  }
  if (words.length) document.querySelectorAll('details').forEach(openAll);
  output.textContent = left.n <= 0 ? 'the first ' + leaves(shown) : leaves(shown);
}

function drawFailures(section, failures) {
  const details = element('details', section);
  element('summary', details, 'not in the tree: ' + failures.length.toLocaleString('en') + ' series');
  details.fill = () => {
    if (details.filled) return;
    details.filled = true;
    const list = element('ul', details);
    failures.slice(0, MOST_OPENED).forEach(one => drawLeaf(list, [one[2], one[0], one[1]]));
  };
  details.addEventListener('toggle', () => { if (details.open) details.fill(); });
}

/* Opens a branch and those below, as many as a browser draws at once. */
function openAll(details) {
  open(details);
  const waiting = [...details.querySelectorAll('details')];
  for (let n = 0; waiting.length && n < MOST_OPENED; n++) {
    const one = waiting.shift();
    if (one.filled) { one.open = true; continue; }
    open(one);
    waiting.push(...one.querySelectorAll('details'));
  }
}

let timer;
input.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(draw, 120); });
document.querySelector('form').addEventListener('submit', event => event.preventDefault());
document.getElementById('open').addEventListener('click',
  () => document.querySelectorAll('.tree > ul > li > details').forEach(openAll));
document.getElementById('close').addEventListener('click', () => document.querySelectorAll('details')
  .forEach(one => { one.open = one.matches('.tree > ul > li > details'); }));
draw();
"""
