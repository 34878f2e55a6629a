# `timebeam rollup --follow` as a Cloud Run job that is started again and again, and an alert on its lag.

terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
  }
}

locals {
  options = merge(
    { for name, value in merge(var.layout, var.options) : name => tostring(value) if value != null },
    {
      project       = var.project
      instance      = var.instance
      rollup_config = var.rollup_config
      dead_letters  = var.dead_letters
      rounds        = 10 # about ten minutes; if the next execution begins before that, leases keep them apart
      summary       = "json"
    },
  )

  buckets = {
    rollup_config = { name = split("/", var.rollup_config)[2], role = "roles/storage.objectViewer" }
    dead_letters  = { name = split("/", var.dead_letters)[2], role = "roles/storage.objectUser" }
  }
}

resource "google_service_account" "follower" {
  project      = var.project
  account_id   = "${var.name}-follower"
  display_name = "Rolls up what is marked in the tables of timebeam"
}

resource "google_bigtable_instance_iam_member" "follower" {
  project  = var.project
  instance = var.instance
  role     = "roles/bigtable.user"
  member   = "serviceAccount:${google_service_account.follower.email}"
}

resource "google_storage_bucket_iam_member" "follower" {
  for_each = local.buckets

  bucket = each.value.name
  role   = each.value.role
  member = "serviceAccount:${google_service_account.follower.email}"
}

resource "google_cloud_run_v2_job" "this" {
  project             = var.project
  location            = var.region
  name                = "${var.name}-follow"
  labels              = var.labels
  deletion_protection = false # it holds nothing

  template {
    template {
      service_account = google_service_account.follower.email
      timeout         = "3600s"
      max_retries     = 0 # the next execution goes on

      containers {
        image   = var.image
        command = ["timebeam"]
        args    = concat(["rollup", "--follow"], [for name, value in local.options : "--${name}=${value}"])

        resources {
          limits = { cpu = tostring(var.cpu), memory = var.memory }
        }
      }
    }
  }

  depends_on = [google_bigtable_instance_iam_member.follower, google_storage_bucket_iam_member.follower]
}

resource "google_cloud_run_v2_job_iam_member" "starter" {
  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_job.this.name
  role     = "roles/run.invoker"
  member   = "serviceAccount:${google_service_account.follower.email}"
}

resource "google_cloud_scheduler_job" "this" {
  project  = var.project
  region   = var.region
  name     = "${var.name}-follow"
  schedule = "*/10 * * * *"

  http_target {
    http_method = "POST"
    uri         = "https://run.googleapis.com/v2/${google_cloud_run_v2_job.this.id}:run"

    oauth_token {
      service_account_email = google_service_account.follower.email
    }
  }
}

# A round prints an object with lag_seconds: how long the hour that could be rolled up first has waited.
resource "google_logging_metric" "lag" {
  project         = var.project
  name            = "${var.name}-follow-lag"
  filter          = "resource.type = \"cloud_run_job\" AND resource.labels.job_name = \"${google_cloud_run_v2_job.this.name}\" AND jsonPayload.lag_seconds >= 0"
  value_extractor = "EXTRACT(jsonPayload.lag_seconds)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "s"
  }
}

resource "google_monitoring_alert_policy" "lag" {
  project               = var.project
  display_name          = "${var.name}: rollups are behind"
  combiner              = "OR"
  notification_channels = var.notification_channels
  user_labels           = var.labels

  documentation {
    content = "Marked hours wait to be rolled up. Answers stay right: they are read from points, which takes longer. See docs/operate/runbook.md of timebeam, Rollups are behind."
  }

  conditions {
    display_name = "an hour waits"

    condition_threshold {
      filter          = "resource.type = \"cloud_run_job\" AND metric.type = \"logging.googleapis.com/user/${google_logging_metric.lag.name}\""
      comparison      = "COMPARISON_GT"
      threshold_value = var.lag_seconds
      duration        = "600s"

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = "ALIGN_PERCENTILE_99"
      }
    }
  }

  conditions {
    display_name = "no round ends"

    condition_absent {
      filter   = "resource.type = \"cloud_run_job\" AND metric.type = \"logging.googleapis.com/user/${google_logging_metric.lag.name}\""
      duration = "3600s"

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = "ALIGN_COUNT"
      }
    }
  }
}
