output "topic" {
  description = "Where points are published."
  value       = google_pubsub_topic.points.id
}

output "dead_letters_subscription" {
  description = "What `timebeam replay` reads, after a fix."
  value       = google_pubsub_subscription.dead_letters.id
}

output "instance" {
  description = "The Bigtable instance."
  value       = local.instance
}

output "rollup_config" {
  description = "The stored rollup configuration, for the server; null without one."
  value       = one([for object in google_storage_bucket_object.rollup_config : "gs://${object.bucket}/${object.name}"])
}

output "app_profiles" {
  description = "For --app-profile: of the stream, and of everything that can wait."
  value = {
    ingest = google_bigtable_app_profile.ingest.app_profile_id
    batch  = google_bigtable_app_profile.batch.app_profile_id
  }
}

output "worker" {
  description = "The service account of the workers."
  value       = google_service_account.worker.email
}

output "tables" {
  description = "The tables and their rules."
  value       = module.tables.tables
}
