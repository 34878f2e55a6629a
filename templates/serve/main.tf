# `timebeam serve` on Cloud Run: an account that reads one instance, a service, and who may call it.

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
  of_tables = ["layout", "table_prefix", "tables"] # the others are settings of the tables
  options = merge(
    { for name, value in var.layout : name => tostring(value) if value != null && contains(local.of_tables, name) },
    { for name, value in var.options : name => tostring(value) if value != null },
    {
      project     = var.project
      instance    = var.instance
      workers     = var.cpu
      max_seconds = var.max_seconds
      max_queries = var.max_queries
      max_waiting = var.max_waiting
    },
    var.rollup_config == null ? {} : { rollup_config = var.rollup_config },
    var.topic == null ? {} : { topic = var.topic },
  )
  settings = { for name, value in var.layout : name => tostring(value) if value != null && !contains(local.of_tables, name) }
}

resource "google_service_account" "reader" {
  project      = var.project
  account_id   = "${var.name}-reader"
  display_name = "Reads the tables of timebeam"
}

resource "google_bigtable_instance_iam_member" "reader" {
  project  = var.project
  instance = var.instance
  role     = "roles/bigtable.reader"
  member   = "serviceAccount:${google_service_account.reader.email}"
}

resource "google_storage_bucket_iam_member" "rollup_config" {
  count = var.rollup_config == null ? 0 : 1

  bucket = split("/", var.rollup_config)[2]
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${google_service_account.reader.email}"
}

resource "google_pubsub_topic_iam_member" "publisher" {
  count = var.topic == null ? 0 : 1

  project = split("/", var.topic)[1]
  topic   = split("/", var.topic)[3]
  role    = "roles/pubsub.publisher"
  member  = "serviceAccount:${google_service_account.reader.email}"
}

resource "google_cloud_run_v2_service" "this" {
  project             = var.project
  location            = var.region
  name                = "${var.name}-serve"
  labels              = var.labels
  ingress             = var.ingress
  deletion_protection = false # it holds nothing

  template {
    service_account                  = google_service_account.reader.email
    timeout                          = "${var.max_seconds + 30}s"
    max_instance_request_concurrency = var.cpu * (var.max_queries + var.max_waiting)

    scaling {
      min_instance_count = var.instances.min
      max_instance_count = var.instances.max
    }

    containers {
      image = var.image
      args  = concat([for name, value in local.options : "--${name}=${value}"], [for name, value in local.settings : "--set=${name}=${value}"])

      ports {
        container_port = 8080
      }

      resources {
        limits = { cpu = tostring(var.cpu), memory = var.memory }
      }

      startup_probe {
        period_seconds    = 5
        timeout_seconds   = 5
        failure_threshold = 24

        http_get {
          path = "/readyz"
        }
      }

      liveness_probe {
        period_seconds  = 30
        timeout_seconds = 10

        http_get {
          path = "/healthz"
        }
      }
    }
  }

  depends_on = [
    google_bigtable_instance_iam_member.reader,
    google_storage_bucket_iam_member.rollup_config,
    google_pubsub_topic_iam_member.publisher,
  ]
}

# The server asks nobody for a password: Cloud Run lets these callers through, and no one else.
resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = toset(var.invokers)

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.this.name
  role     = "roles/run.invoker"
  member   = each.value
}
