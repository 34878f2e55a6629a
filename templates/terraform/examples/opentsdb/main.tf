# OpenTSDB's tables, salted, with a stream and nightly rollups.

provider "google" {
  project = "my-project"
  region  = "europe-west1"
}

provider "google-beta" {
  project = "my-project"
  region  = "europe-west1"
}

module "timebeam" {
  source = "../.."

  project    = "my-project"
  region     = "europe-west1"
  zone       = "europe-west1-b"
  repository = "europe-west1-docker.pkg.dev/my-project/timebeam"
  tag        = "0.1.0"
  bucket     = "gs://my-bucket/timebeam"

  layout = {
    layout       = "opentsdb"
    salt_width   = 1
    salt_buckets = 20
  }

  ingest = {
    format              = "opentsdb-json"
    packing             = "points"
    auto_create_metrics = true
    mark_changed        = true
  }

  rollup = {
    lookback_days = 2
  }

  delete = {
    keep_days = "debug.*=7,*=400/3650"
  }
  delete_schedule = "30 3 * * *"

  rollup_config_file = "${path.module}/rollups.json"
  nodes              = { min = 3, max = 12 }
  max_age_days       = { tsdb = 400, tsdb-rollup-1h = 3650 }

  labels = { app = "timebeam" }
}

# Grafana's and Prometheus' side; without it nothing is served.
module "serve" {
  source = "../../../serve"

  project       = "my-project"
  region        = "europe-west1"
  image         = "europe-west1-docker.pkg.dev/my-project/timebeam/serve:0.1.0"
  instance      = module.timebeam.instance
  rollup_config = module.timebeam.rollup_config
  invokers      = ["group:dashboards@example.com"]

  layout = {
    layout       = "opentsdb"
    salt_width   = 1
    salt_buckets = 20
  }
}

output "topic" {
  value = module.timebeam.topic
}

output "serve" {
  value = module.serve.url
}
