"""The nightly rollup in Airflow (Cloud Composer), with catch-up: a day for each run, whenever it runs.

Unlike the body of Cloud Scheduler this one names the day. A day that was left out while Airflow was down is
run when it is up again, and a past range is run again with `airflow dags backfill`.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from airflow import DAG
from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator

PROJECT = "MY-PROJECT"
REGION = "MY-REGION"

BODY = json.loads((Path(__file__).parent / "rollup.json").read_text())
LAUNCH = BODY["launchParameter"]

with DAG(
    dag_id="timebeam_rollup",
    description="Rollups of each day, out of the raw rows of Bigtable.",
    schedule="15 2 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    catchup=True,
    # Days do not touch each other's intervals, but each reads the whole index of names.
    max_active_runs=2,
    default_args={"retries": 3, "retry_delay": datetime.timedelta(minutes=10)},
) as dag:
    # `ds` is the day that the run is of; a run starts when its day is over. The job's name is its lock.
    parameters = {name: value for name, value in LAUNCH["parameters"].items() if name != "lookback_days"}
    DataflowStartFlexTemplateOperator(
        task_id="rollup",
        project_id=PROJECT,
        location=REGION,
        wait_until_finished=True,
        append_job_name=False,
        body={
            "launchParameter": {
                **LAUNCH,
                "jobName": "timebeam-rollup-{{ ds_nodash }}",
                "parameters": {**parameters, "day": "{{ ds }}"},
            }
        },
    )
