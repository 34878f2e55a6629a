resource "google_monitoring_dashboard" "this" {
  project        = var.project
  dashboard_json = replace(file("${path.module}/../dashboard.json"), "JOB_NAME", google_dataflow_flex_template_job.ingest.name)

}
