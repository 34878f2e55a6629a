"""What images are built from: the Dockerfile, its build, and the distribution in a clean environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support.servers.dataflow import ROOT
from tests.support.stored import Store
from timebeam.pipelines.deploy.templates import JOBS
from timebeam.schema.core.points import Series

DOCKERFILE = (ROOT / "templates" / "Dockerfile").read_text()
LOCK = (ROOT / "requirements-test.lock").read_text()
FLEX = list(JOBS)


def instructions(word: str) -> list[str]:
    """What stands behind an instruction of the Dockerfile."""
    return re.findall(rf"^{word} (.*)$", DOCKERFILE, re.MULTILINE)


def copied() -> list[tuple[list[str], str]]:
    """(paths in the repository, place in the image) of what is copied from the repository."""
    found = [line.split() for line in instructions("COPY") if not line.startswith("--from")]
    return [(words[:-1], words[-1]) for words in found]


def test_all_that_is_copied_is_there() -> None:
    assert copied()
    for sources, _ in copied():
        for source in sources:
            assert (ROOT / source).exists(), source


def test_the_versions_are_those_of_the_lock() -> None:
    (beam,) = re.findall(r"^apache-beam==(.*)$", LOCK, re.MULTILINE)
    (python,) = re.findall(r"on Python (3\.\d+)", LOCK)
    assert f"ARG BEAM_VERSION={beam}" in DOCKERFILE
    images = instructions("FROM")
    assert images[0].startswith(f"apache/beam_python{python}_sdk:")
    assert f"/python{python.replace('.', '')}-template-launcher-base:" in images[1]
    assert images[2].startswith(f"python:{python}-slim")
    assert not [image for image in images if image.endswith(":latest") or ":" not in image]
    assert "--constraint requirements-test.lock" in DOCKERFILE
    assert "pip check" in DOCKERFILE


def test_the_image_is_for_the_launcher_and_for_workers() -> None:
    # What both find: the worker its entry point, the launcher its program, and that the program of the job.
    assert instructions("ENTRYPOINT") == ['["/opt/apache/beam/boot"]']
    assert "/opt/google/dataflow/python_template_launcher" in DOCKERFILE
    assert "/opt/apache/beam /opt/apache/beam" in DOCKERFILE
    (place,) = re.findall(r"^WORKDIR (/template)$", DOCKERFILE, re.MULTILINE)
    assert (["templates/main.py"], "main.py") in copied()
    assert f"FLEX_TEMPLATE_PYTHON_PY_FILE={place}/main.py" in instructions("ENV")
    assert not re.search(r"FLEX_TEMPLATE_PYTHON_(REQUIREMENTS|SETUP)", DOCKERFILE)
    assert "TIMEBEAM_JOB=${JOB} TIMEBEAM_IMAGE=${IMAGE}" in instructions("ENV")


def test_the_build_makes_an_image_of_each_job(tmp_path: Path) -> None:
    # Its script is run with a program in place of docker that writes down what it is asked for.
    config = yaml.safe_load((ROOT / "templates" / "cloudbuild.yaml").read_text())
    assert config["substitutions"]["_JOBS"].split() == FLEX
    (step,) = config["steps"]
    (launcher,) = re.findall(r"^ARG LAUNCHER_TAG=(.+)$", DOCKERFILE, re.MULTILINE)
    given = config["substitutions"] | {"_REPOSITORY": "registry/timebeam", "_TAG": "7"}
    options, script = step["args"]
    for name, value in given.items():
        script = script.replace(f"${{{name}}}", value)
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    docker.chmod(0o755)
    subprocess.run(
        [step["entrypoint"], options, script.replace("$$", "$")],
        check=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    for job, built, pushed in zip(FLEX, calls[::2], calls[1::2], strict=True):
        image = f"registry/timebeam/timebeam-{job}:7"
        assert pushed == f"push {image}"
        arguments = f"--build-arg=JOB={job} --build-arg=IMAGE={image} --build-arg=LAUNCHER_TAG={launcher}"
        assert built == f"build --file=templates/Dockerfile {arguments} --tag={image} ."


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment in which only timebeam's wheel is installed; it borrows the rest.

    The wheel is made of what the Dockerfile copies, and of nothing else.
    """
    folder = tmp_path_factory.mktemp("clean")
    tree = folder / "tree"
    tree.mkdir()
    for sources, place in copied()[:-1]:
        for source in sources:
            to = tree / place / source if place == "./" else tree / place
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(ROOT / source, to)
    quiet = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    pip = [*quiet, "wheel", "--no-deps", "--wheel-dir", str(folder), str(tree)]
    made = subprocess.run(pip, capture_output=True, text=True)
    if "No matching distribution found for setuptools" in made.stderr:
        pytest.skip("setuptools, which makes the wheel, cannot be downloaded")
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("timebeam-*.whl")
    venv.create(folder / "venv", with_pip=False)
    into = [*quiet, "--python", str(folder / "venv"), "install", "--no-deps", str(wheel)]
    subprocess.run(into, check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    borrowed = [path + "\n" for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("".join(borrowed))
    return folder


@pytest.mark.long
def test_the_wheel_has_all_that_the_packages_have(installed: Path) -> None:
    (wheel,) = installed.glob("timebeam-*.whl")
    found = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"timebeam/{path.relative_to(ROOT)}"
        for package in ("schema", "transforms", "pipelines")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= found
    assert {name.split("/")[0] for name in found if ".dist-info" not in name} == {"timebeam"}
    assert not [name for name in found if name.startswith("timebeam/timebeam")]


@pytest.mark.long
def test_another_package_of_the_name_schema_works_beside_it(installed: Path, tmp_path: Path) -> None:
    program = "from schema import Schema; import timebeam.schema.core.points; print(Schema(int).validate(7))"
    python = str(installed / "venv" / "bin" / "python")
    ran = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout == "7\n", ran.stderr


@pytest.mark.long
def test_the_source_distribution_has_all_that_setup_reads(installed: Path) -> None:
    tree = installed / "tree"
    made = subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(installed)],
        cwd=tree,
        capture_output=True,
        text=True,
    )
    if "No module named 'setuptools'" in made.stderr:
        pytest.skip("this Python has no setuptools")
    assert made.returncode == 0, made.stderr
    (sdist,) = installed.glob("timebeam-*.tar.gz")
    with tarfile.open(sdist) as file:
        found = {name.partition("/")[2] for name in file.getnames()}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= found
    assert "timebeam/pipelines/deploy/templates.py" in found
    assert not {name.split("/")[0] for name in found} & {"schema", "transforms", "pipelines"}
    assert {f"timebeam/{path.relative_to(tree)}" for path in (tree / "schema").rglob("*.avsc")} <= found


@pytest.mark.long
def test_what_is_installed_runs(
    installed: Path, bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    (tmp_path / "put.txt").write_text("put sys.cpu 1795250200 42 host=web01\n")
    programs = installed / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *words: str) -> str:
        ran = subprocess.run(
            [programs / program, *words], cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    where = "import timebeam.pipelines.cli; print(timebeam.pipelines.cli.__file__)"
    assert str(installed / "venv") in run("python", "-c", where)
    assert "usage: timebeam COMMAND" in run("timebeam", "--help")
    said = run(
        *("timebeam", "ingest", *store.flags, "--format=opentsdb-text", "--input=put.txt"),
        "--auto-create-metrics",
    )
    assert re.search(r"^points stored +1$", said, re.MULTILINE)
    assert store.points() == {Series.of("sys.cpu", {"host": "web01"}): {1_795_250_200_000: 42}}
