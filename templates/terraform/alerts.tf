locals {
  handbook = "See docs/operate/runbook.md of timebeam, What each alert means."

  # What, of which thing, from when on, for how long. All are threshold conditions on a metric.
  alerts = {
    dead-letters = {
      title    = "input was rejected"
      filter   = "resource.type = \"pubsub_subscription\" AND resource.label.subscription_id = \"${google_pubsub_subscription.dead_letters.name}\" AND metric.type = \"pubsub.googleapis.com/subscription/num_undelivered_messages\""
      above    = 0
      duration = "0s"
      aligner  = "ALIGN_MAX"
      meaning  = "Dead letters wait: records that could not be stored, with the reason as attribute."
    }
    backlog = {
      title    = "points wait in Pub/Sub"
      filter   = "resource.type = \"pubsub_subscription\" AND resource.label.subscription_id = \"${google_pubsub_subscription.points.name}\" AND metric.type = \"pubsub.googleapis.com/subscription/oldest_unacked_message_age\""
      above    = var.backlog_seconds
      duration = "300s"
      aligner  = "ALIGN_MAX"
      meaning  = "The oldest message has waited too long: the stream is down, too slow, or Bigtable does not answer."
    }
    freshness = {
      title    = "the stream is behind"
      filter   = "resource.type = \"dataflow_job\" AND resource.label.job_name = \"${google_dataflow_flex_template_job.ingest.name}\" AND metric.type = \"dataflow.googleapis.com/job/data_watermark_age\""
      above    = 2 * var.backlog_seconds
      duration = "300s"
      aligner  = "ALIGN_MAX"
      meaning  = "Points are stored later than they should be; queries lack the latest minutes."
    }
    stream-failed = {
      title    = "the streaming job has failed"
      filter   = "resource.type = \"dataflow_job\" AND resource.label.job_name = \"${google_dataflow_flex_template_job.ingest.name}\" AND metric.type = \"dataflow.googleapis.com/job/is_failed\""
      above    = 0
      duration = "0s"
      aligner  = "ALIGN_MAX"
      meaning  = "The job has ended. Messages wait in the subscription for seven days; nothing is lost until then."
    }
    bigtable-cpu = {
      title    = "Bigtable is busy"
      filter   = "resource.type = \"bigtable_cluster\" AND resource.label.instance = \"${local.instance}\" AND resource.label.cluster = \"${local.cluster_id}\" AND metric.type = \"bigtable.googleapis.com/cluster/cpu_load\""
      above    = var.alert_cpu
      duration = "900s"
      aligner  = "ALIGN_MEAN"
      meaning  = "The cluster's CPU load is high: reads slow down and writes are retried. Raise nodes.max, or move batch work to the night."
    }

    bigtable-storage = {
      title    = "Bigtable fills up"
      filter   = "resource.type = \"bigtable_cluster\" AND resource.label.instance = \"${local.instance}\" AND resource.label.cluster = \"${local.cluster_id}\" AND metric.type = \"bigtable.googleapis.com/cluster/storage_utilization\""
      above    = var.alert_storage
      duration = "900s"
      aligner  = "ALIGN_MAX"
      meaning  = "The nodes cannot hold much more: writes fail at 100 %. Raise nodes.min, or set max_age_days."
    }

    series-limit = {
      title    = "a metric grows beyond its limit"
      filter   = "resource.type = \"dataflow_job\" AND resource.label.job_name = \"${google_dataflow_flex_template_job.ingest.name}\" AND metric.type = \"dataflow.googleapis.com/job/user_counter\" AND metric.label.metric_name = \"rejected_limit\""
      above    = 0
      duration = "0s"
      aligner  = "ALIGN_DELTA"
      meaning  = "A producer makes new series: they are rejected, all other points are stored. The dead letters say which metric and tag key."
    }

    nightly-failed = {
      title    = "a nightly job has failed"
      filter   = "resource.type = \"dataflow_job\" AND resource.label.job_name = one_of(\"${var.name}-rollup\", \"${var.name}-delete\", \"${var.name}-archive\") AND metric.type = \"dataflow.googleapis.com/job/is_failed\""
      above    = 0
      duration = "0s"
      aligner  = "ALIGN_MAX"
      meaning  = "A day has no rollups, or half of them; or old points remain. Run the job again: a second run gives what the first one should have given."
    }
  }
}

resource "google_monitoring_alert_policy" "this" {
  for_each = local.alerts

  project               = var.project
  display_name          = "${var.name}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = var.notification_channels
  user_labels           = var.labels

  documentation {
    content = "${each.value.meaning} ${local.handbook}"
  }

  conditions {
    display_name = each.value.title

    condition_threshold {
      filter          = each.value.filter
      comparison      = "COMPARISON_GT"
      threshold_value = each.value.above
      duration        = each.value.duration

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = each.value.aligner
      }
    }
  }
}

locals {
  log_alerts = {
    uids = {
      title   = "UIDs run out"
      filter  = "resource.type = \"dataflow_step\" AND severity >= WARNING AND \"UIDs of kind\" AND \"are used\""
      meaning = "More than four fifths of the UIDs of a kind are given; when all are, points of new names are rejected."
    }
    nightly-not-started = {
      title   = "a nightly job was not started"
      filter  = "resource.type = \"cloud_scheduler_job\" AND resource.labels.job_id = (\"${var.name}-rollup\" OR \"${var.name}-delete\" OR \"${var.name}-archive\") AND severity >= ERROR"
      meaning = "Cloud Scheduler's call was refused: no permission, no template, or the job of the night before still runs."
    }
  }
}

resource "google_monitoring_alert_policy" "log" {
  for_each = local.log_alerts

  project               = var.project
  display_name          = "${var.name}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = var.notification_channels
  user_labels           = var.labels

  documentation {
    content = "${each.value.meaning} ${local.handbook}"
  }

  conditions {
    display_name = each.value.title

    condition_matched_log {
      filter = each.value.filter
    }
  }

  alert_strategy {
    notification_rate_limit {
      period = "3600s"
    }
  }
}
