"""The distribution `timebeam`; Dataflow workers install it from here too."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

REQUIRES = [
    "apache-beam[gcp]>=2.77,<2.79",  # the pipelines
    "google-cloud-bigtable>=2.44,<3",  # the tables; below 2.42 write errors could vanish
    "google-cloud-pubsub>=2.30,<3",  # streaming input
    "fastavro>=1.9,<2",  # Avro messages
    "matplotlib>=3.8,<4",  # plots of queries
    "msgspec>=0.18,<1",  # JSON of records, heroic-json and kairosdb-json
    "numpy>=1.26,<3",  # points in columns
    "pyarrow>=16,<26",  # numbers parsed and texts grouped, many at a time
    "tomli>=2,<3; python_version < '3.11'",  # declared tables
    "zstandard>=0.22,<1",  # .zst files
]
TEST = [
    "hypothesis>=6.100,<7",
    "mypy>=1.13,<3",
    "pytest>=8,<10",
    "pytest-xdist>=3.5,<4",
    "python-hcl2>=7,<9",  # Terraform files
    "pyyaml>=6,<7",  # Kubernetes files
    "ruff>=0.8,<1",
]

setup(
    name="timebeam",
    version="0.1.0",
    description="Apache Beam pipelines that store metric time series in Google Cloud Bigtable",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=find_namespace_packages(include=["pipelines*", "transforms*", "schema*"]),
    package_data={"schema.messages": ["*.avsc"]},
    install_requires=REQUIRES,
    extras_require={"test": TEST},
    entry_points={"console_scripts": ["timebeam = pipelines.cli:main"]},
)
