# What jobs keep while they run: nothing in it is wanted after a month.
resource "google_storage_bucket" "temp" {
  project                     = var.project
  name                        = "${var.project}-${var.name}-temp"
  location                    = var.region
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]

    content {
      default_kms_key_name = encryption.value
    }
  }

  soft_delete_policy {
    retention_duration_seconds = 0
  }

  lifecycle_rule {
    condition {
      age = 30
    }

    action {
      type = "Delete"
    }
  }
}

# The settings, the rollup configuration, and dead letters of batch jobs.
resource "google_storage_bucket" "data" {
  project                     = var.project
  name                        = "${var.project}-${var.name}-data"
  location                    = var.region
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]

    content {
      default_kms_key_name = encryption.value
    }
  }

  versioning {
    enabled = true
  }
}

resource "google_storage_bucket_object" "settings" {
  count = var.settings_file == null ? 0 : 1

  bucket  = google_storage_bucket.data.name
  name    = "timebeam.toml"
  content = file(var.settings_file)
}

resource "google_storage_bucket_object" "rollup_config" {
  count = var.rollup_config_file == null ? 0 : 1

  bucket  = google_storage_bucket.data.name
  name    = "rollups.json"
  content = local.rollup_config
}
