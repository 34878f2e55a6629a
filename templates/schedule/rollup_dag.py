"""The nightly rollup in Airflow 2 or 3 (Cloud Composer): one job for each day.

Unlike the body of Cloud Scheduler it names the day: that of the start of the run's data interval, which an
explicit timetable gives. With a plain cron expression, Airflow 3 makes `ds` the day on which the run starts,
which is not over.
Past days: `airflow backfill create --dag-id timebeam_rollup --from-date 2026-01-01 --to-date 2026-01-31`.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from airflow import DAG
from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.timetables.interval import CronDataIntervalTimetable

PROJECT = "MY-PROJECT"
REGION = "MY-REGION"
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)  # set it to the first day with points

LAUNCH = json.loads((Path(__file__).parent / "rollup.json").read_text())["launchParameter"]
DAY = "{{ data_interval_start | ds }}"

with DAG(
    dag_id="timebeam_rollup",
    description="Rollups of each day, from the raw rows of Bigtable.",
    schedule=CronDataIntervalTimetable("15 2 * * *", timezone="UTC"),
    start_date=START,
    catchup=False,  # True starts a job for each day since START
    # Days do not touch each other's intervals, but each reads the whole index of names.
    max_active_runs=2,
    default_args={"retries": 3, "retry_delay": datetime.timedelta(minutes=10)},
) as dag:
    # `day` takes the place of `delay_hours`; `lookback_days` stays, for points that came late.
    parameters = {name: value for name, value in LAUNCH["parameters"].items() if name != "delay_hours"}
    DataflowStartFlexTemplateOperator(
        task_id="rollup",
        project_id=PROJECT,
        location=REGION,
        wait_until_finished=True,
        append_job_name=False,
        body={
            "launchParameter": {
                **LAUNCH,
                # The job's name is its lock.
                "jobName": "timebeam-rollup-{{ data_interval_start | ds_nodash }}",
                "parameters": {**parameters, "day": DAY},
            }
        },
    )
