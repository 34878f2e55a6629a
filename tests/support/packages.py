"""Installed packages with formats and stores, for tests: folders of metadata, as pip writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from timebeam.schema.core.plugins import find_plugin


def install(folder: Path, package: str, version: str, group: str, entries: str) -> None:
    """Writes the metadata of a package whose entry points are these lines, `name = module:class`."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    info.joinpath("entry_points.txt").write_text(f"[{group}]\n{entries}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs packages (`install`, without the folder) for the test, and modules: `module(name, text)`."""
    monkeypatch.syspath_prepend(tmp_path)
    find_plugin.cache_clear()

    def add(package: str, group: str, entries: str, version: str = "1.0", **modules: str) -> None:
        install(tmp_path, package, version, group, entries)
        for name, text in modules.items():
            tmp_path.joinpath(f"{name}.py").write_text(text)
        find_plugin.cache_clear()

    yield add
    find_plugin.cache_clear()
