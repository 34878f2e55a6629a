resource "google_pubsub_topic" "points" {
  project                    = var.project
  kms_key_name               = var.kms_key
  name                       = "${var.name}-points"
  labels                     = var.labels
  message_retention_duration = "604800s"
}

resource "google_pubsub_subscription" "points" {
  project                    = var.project
  name                       = "${var.name}-points"
  topic                      = google_pubsub_topic.points.id
  labels                     = var.labels
  ack_deadline_seconds       = 60
  message_retention_duration = "604800s"

  expiration_policy {
    ttl = ""
  }

  # No dead_letter_policy: it would give away good messages while Bigtable does not answer. What cannot be
  # stored is the job's to say, in the topic of dead letters.
}

resource "google_pubsub_topic" "dead_letters" {
  project                    = var.project
  kms_key_name               = var.kms_key
  name                       = "${var.name}-dead-letters"
  labels                     = var.labels
  message_retention_duration = "2678400s"
}

# Holds them until they are looked at, and replayed.
resource "google_pubsub_subscription" "dead_letters" {
  project                    = var.project
  name                       = "${var.name}-dead-letters"
  topic                      = google_pubsub_topic.dead_letters.id
  labels                     = var.labels
  ack_deadline_seconds       = 60
  message_retention_duration = "2678400s"

  expiration_policy {
    ttl = ""
  }
}
