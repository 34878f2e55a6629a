output "url" {
  description = "Where the API and its page are; callers send an identity token."
  value       = google_cloud_run_v2_service.this.uri
}

output "reader" {
  description = "The service account that reads the tables."
  value       = google_service_account.reader.email
}
