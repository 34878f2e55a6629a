locals {
  rollup_config = var.rollup_config_file == null ? null : file(var.rollup_config_file)

  # What the program does not get, it has a default for, or takes from the settings file.
  layout_values = { for name, value in var.layout : name => tostring(value) if value != null }
  settings      = [for name, value in local.layout_values : "${name}=${value}" if contains(local.stored_settings, name)]
  layout_parameters = merge(
    { for name, value in local.layout_values : name => value if !contains(local.stored_settings, name) },
    length(local.settings) == 0 ? {} : { settings = join(";", local.settings) },
  )

  settings_parameters = {
    for name, value in {
      config  = one([for object in google_storage_bucket_object.settings : "gs://${object.bucket}/${object.name}"])
      profile = var.settings_profile
    } : name => value if value != null
  }

  # A bundle that runs twice adds columns to compacted rows only; docs/operate/deploy.md, Streaming modes.
  streaming_mode = "streaming_mode_${coalesce(var.ingest.packing, module.settings.values.packing) == "compacted" ? "exactly_once" : "at_least_once"}"

  ingest_parameters = merge(
    local.settings_parameters,
    local.layout_parameters,
    { for name, value in var.ingest : name => tostring(value) if value != null },
    {
      input_subscription = google_pubsub_subscription.points.id
      dead_letters       = google_pubsub_topic.dead_letters.id
      instance           = local.instance
      app_profile        = google_bigtable_app_profile.ingest.app_profile_id
      bigtable_writer    = "direct" # Beam's own knows no app profiles
    },
  )

  rollup_parameters = var.rollup_config_file == null ? {} : merge(
    local.settings_parameters,
    local.layout_parameters,
    { for name, value in var.rollup : name => tostring(value) if value != null },
    {
      rollup_config = "gs://${google_storage_bucket.data.name}/${google_storage_bucket_object.rollup_config[0].name}"
      dead_letters  = "gs://${google_storage_bucket.data.name}/dead-letters/rollup"
      instance      = local.instance
      app_profile   = google_bigtable_app_profile.batch.app_profile_id
    },
  )

  delete_parameters = merge(
    local.settings_parameters,
    local.layout_parameters,
    { for name, value in var.delete : name => tostring(value) if value != null },
    { for name, value in {
      rollup_config = one([for object in google_storage_bucket_object.rollup_config : "gs://${object.bucket}/${object.name}"])
      unattended    = "true"
      log           = "gs://${google_storage_bucket.data.name}/deleted/run"
      instance      = local.instance
      app_profile   = google_bigtable_app_profile.batch.app_profile_id
    } : name => value if value != null },
  )

  archive_parameters = merge(
    local.settings_parameters,
    local.layout_parameters,
    { for name, value in var.archive : name => tostring(value) if value != null },
    {
      instance    = local.instance
      app_profile = google_bigtable_app_profile.batch.app_profile_id
    },
  )

  nightly = merge(
    # Tables whose writers all mark are followed (templates/follow): a run of a day is rejected there.
    var.rollup_config_file == null || module.settings.values.marked_since != "" ? {} : {
      rollup = { description = "The rollups of the last complete day.", schedule = var.schedule, parameters = local.rollup_parameters }
    },
    var.delete_schedule == null ? {} : {
      delete = { description = "Deletes what is older than [retention] says.", schedule = var.delete_schedule, parameters = local.delete_parameters }
    },
    var.archive_schedule == null ? {} : {
      archive = { description = "Moves closed hours into the archive.", schedule = var.archive_schedule, parameters = local.archive_parameters }
    },
  )
}

resource "google_dataflow_flex_template_job" "ingest" {
  provider = google-beta

  project                 = var.project
  region                  = var.region
  name                    = "${var.name}-ingest"
  labels                  = var.labels
  container_spec_gcs_path = "${var.bucket}/templates/ingest.json"
  parameters              = local.ingest_parameters

  sdk_container_image     = "${var.repository}/timebeam-ingest:${var.tag}"
  service_account_email   = google_service_account.worker.email
  temp_location           = "gs://${google_storage_bucket.temp.name}/tmp"
  staging_location        = "gs://${google_storage_bucket.temp.name}/staging"
  machine_type            = var.machine_type
  max_workers             = var.max_workers.ingest
  subnetwork              = var.subnetwork
  ip_configuration        = var.subnetwork == null ? null : "WORKER_IP_PRIVATE"
  enable_streaming_engine = true
  kms_key_name            = var.kms_key
  network                 = var.network

  additional_experiments = concat([local.streaming_mode], var.experiments)

  # What is in the pipeline is stored before the job ends, and its name is free only then.
  on_delete                    = "drain"
  skip_wait_on_job_termination = false

  depends_on = [
    google_project_service.this,
    google_bigtable_gc_policy.this,
    google_project_iam_member.worker,
    google_bigtable_instance_iam_member.worker,
    google_storage_bucket_iam_member.worker,
    google_storage_bucket_iam_member.templates,
    google_pubsub_subscription_iam_member.worker,
    google_pubsub_topic_iam_member.worker,
  ]
}

# Batch jobs end, and a job that has ended would be started again by the next `apply`: so they are scheduled.
resource "google_cloud_scheduler_job" "nightly" {
  for_each = local.nightly

  project          = var.project
  region           = var.region
  name             = "${var.name}-${each.key}"
  description      = each.value.description
  schedule         = each.value.schedule
  time_zone        = "Etc/UTC"
  attempt_deadline = "320s"

  retry_config {
    retry_count          = 3
    min_backoff_duration = "60s"
    max_backoff_duration = "600s"
  }

  http_target {
    http_method = "POST"
    uri         = "https://dataflow.googleapis.com/v1b3/projects/${var.project}/locations/${var.region}/flexTemplates:launch"
    headers     = { "Content-Type" = "application/json" }

    # The body never changes: the job finds its own days. Its name is its lock, since Dataflow takes no second
    # job of a name while the first one is active.
    body = base64encode(jsonencode({
      launchParameter = {
        jobName              = "${var.name}-${each.key}"
        containerSpecGcsPath = "${var.bucket}/templates/${each.key}.json"
        parameters           = each.value.parameters
        environment = {
          tempLocation          = "gs://${google_storage_bucket.temp.name}/tmp"
          stagingLocation       = "gs://${google_storage_bucket.temp.name}/staging"
          maxWorkers            = var.max_workers[each.key]
          machineType           = var.machine_type
          serviceAccountEmail   = google_service_account.worker.email
          sdkContainerImage     = "${var.repository}/timebeam-${each.key}:${var.tag}"
          network               = var.network == null ? "" : var.network
          subnetwork            = var.subnetwork == null ? "" : var.subnetwork
          kmsKeyName            = var.kms_key == null ? "" : var.kms_key
          additionalExperiments = var.experiments
          ipConfiguration       = var.subnetwork == null ? "WORKER_IP_PUBLIC" : "WORKER_IP_PRIVATE"
          additionalUserLabels  = var.labels
        }
      }
    }))

    oauth_token {
      service_account_email = google_service_account.scheduler.email
      scope                 = "https://www.googleapis.com/auth/cloud-platform"
    }
  }
}

moved {
  from = google_cloud_scheduler_job.rollup[0]
  to   = google_cloud_scheduler_job.nightly["rollup"]
}
