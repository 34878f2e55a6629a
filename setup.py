"""The distribution `timebeam`; Dataflow workers install it from here too."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

REQUIRES = [
    "apache-beam[gcp]>=2.77,<2.79",  # the pipelines
    "google-cloud-bigtable>=2.44,<3",  # the tables; below 2.42 write errors could vanish
    "google-cloud-pubsub>=2.30,<3",  # streaming input
    "datasketches>=5.1,<6",  # HyperLogLog: counts of series, for limits
    "fastavro>=1.9,<2",  # Avro messages
    "msgspec>=0.21,<1",  # JSON of records, heroic-json and kairosdb-json
    "numpy>=1.26,<3",  # points in columns
    "pyarrow>=17,<26",  # numbers parsed and texts grouped, many at a time; 16 crashes for damaged Parquet
    "shtab>=1.13,<2",  # `timebeam completion`: scripts that start no program when Tab is pressed
    "google-re2>=1.1.20250722,<2",  # regular expressions in linear time
    "zstandard>=0.22,<1",  # .zst files
]
PLOTS = [
    "matplotlib>=3.8,<4",  # charts as PNG
    "plotly>=6,<8",  # charts as HTML
]
SERVE = [
    "orjson>=3.10,<4",  # answers in JSON
    "plotly>=6,<8",  # the chart of the page
    "starlette>=0.46,<2",  # requests, and clients that hang up
    "uvicorn>=0.36,<1",  # the server; its h11 takes unencoded braces in URLs
]
ARCHIVE = ["pcodec>=1.0,<2"]  # the columns of the archive
PANDAS = ["pandas>=2.2,<4"]  # timebeam.read_frame
TEST = [
    *ARCHIVE,
    *PANDAS,
    *PLOTS,
    *SERVE,
    "duckdb>=1.1,<3",  # reads what `timebeam export` writes
    "httpx>=0.27,<1",  # the client of Starlette's tests
    "hypothesis>=6.100,<7",
    "mypy>=1.13,<3",
    "opentelemetry-exporter-otlp-proto-common>=1.35,<2",  # an encoder of OTLP that is not ours
    "opentelemetry-exporter-otlp-proto-http>=1.35,<2",  # a producer of OTLP over HTTP
    "opentelemetry-sdk>=1.35,<2",
    "pytest>=8,<10",
    "pytest-xdist>=3.5,<4",
    "python-hcl2>=8.1.4,<9",  # Terraform files
    "pyyaml>=6,<7",  # Kubernetes files
    "ruff>=0.8,<1",
    "schema>=0.7.8,<1",  # a package with the name of a folder of ours: both must work in one environment
]
DOCS = [
    "furo>=2025.7",  # the theme of the site
    "myst-parser>=4,<6",  # Markdown for Sphinx
    "sphinx>=8,<10",  # the site
]


def long_description() -> str:
    """The README; its relative links lead into the repository that PROJECT_URL names, if it is set."""
    text = ROOT.joinpath("README.md").read_text(encoding="utf-8")
    url = os.environ.get("PROJECT_URL", "").rstrip("/")
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/main/", text) if url else text


VERSION = re.findall(
    r'^__version__ = "(.+)"$', ROOT.joinpath("timebeam/__init__.py").read_text(), re.MULTILINE
)[0]

setup(
    name="timebeam",
    version=VERSION,
    description="Apache Beam pipelines that store metric time series in Google Cloud Bigtable",
    long_description=long_description(),
    keywords="bigtable beam dataflow opentsdb heroic kairosdb time-series metrics pubsub",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: System Administrators",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Database",
        "Topic :: System :: Monitoring",
        "Typing :: Typed",
    ],
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["timebeam", "timebeam.*"]),
    package_data={
        "timebeam": ["py.typed"],
        "timebeam.pipelines.local": ["flink-pom.xml"],
        "timebeam.pipelines.serve": ["page.html", "page.js"],
        "timebeam.pipelines.sizing": ["costs.json"],
        "timebeam.schema.formats.avro": ["*.avsc"],
    },
    install_requires=REQUIRES,
    extras_require={
        "archive": ARCHIVE,
        "docs": DOCS,
        "pandas": PANDAS,
        "plots": PLOTS,
        "serve": SERVE,
        "test": TEST,
    },
    entry_points={"console_scripts": ["timebeam = timebeam.pipelines.cli:main"]},
)
