# What the workers may do.
resource "google_service_account" "worker" {
  project      = var.project
  account_id   = "${var.name}-worker"
  display_name = "Workers of timebeam"
}

# What starts the nightly job, and may not look into a table.
resource "google_service_account" "scheduler" {
  project      = var.project
  account_id   = "${var.name}-scheduler"
  display_name = "Starts the nightly jobs of timebeam"
}

locals {
  worker    = "serviceAccount:${google_service_account.worker.email}"
  scheduler = "serviceAccount:${google_service_account.scheduler.email}"
  buckets   = { temp = google_storage_bucket.temp.name, data = google_storage_bucket.data.name }
}

resource "google_project_iam_member" "worker" {
  for_each = toset(["roles/dataflow.worker", "roles/artifactregistry.reader"])

  project = var.project
  role    = each.value
  member  = local.worker
}

resource "google_bigtable_instance_iam_member" "worker" {
  project  = var.project
  instance = local.instance
  role     = "roles/bigtable.user"
  member   = local.worker
}

resource "google_storage_bucket_iam_member" "worker" {
  for_each = local.buckets

  bucket = each.value
  role   = "roles/storage.objectAdmin"
  member = local.worker
}

resource "google_storage_bucket_iam_member" "templates" {
  for_each = { worker = local.worker, scheduler = local.scheduler }

  bucket = split("/", var.bucket)[2]
  role   = "roles/storage.objectViewer"
  member = each.value
}

resource "google_pubsub_subscription_iam_member" "worker" {
  for_each = toset(["roles/pubsub.subscriber", "roles/pubsub.viewer"])

  project      = var.project
  subscription = google_pubsub_subscription.points.name
  role         = each.value
  member       = local.worker
}

resource "google_pubsub_topic_iam_member" "worker" {
  for_each = toset(["roles/pubsub.publisher", "roles/pubsub.viewer"])

  project = var.project
  topic   = google_pubsub_topic.dead_letters.name
  role    = each.value
  member  = local.worker
}

# Dataflow looks at the topic of its subscription, to tell how old the oldest message is.
resource "google_pubsub_topic_iam_member" "points" {
  project = var.project
  topic   = google_pubsub_topic.points.name
  role    = "roles/pubsub.viewer"
  member  = local.worker
}

locals {
  # Keys are known before the accounts are made.
  launchers = merge({ scheduler = local.scheduler }, { for member in var.launchers : member => member })
  launching = merge([
    for name, member in local.launchers : {
      for role in ["roles/dataflow.developer", "roles/viewer"] : "${name} ${role}" => { member = member, role = role }
    }
  ]...)
}

# Google's page on flex templates asks for the viewer's role of whoever launches one, beside the developer's.
resource "google_project_iam_member" "launcher" {
  for_each = local.launching

  project = var.project
  role    = each.value.role
  member  = each.value.member
}

resource "google_service_account_iam_member" "launcher" {
  for_each = local.launchers

  service_account_id = google_service_account.worker.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}
