variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where the jobs run."
  type        = string
}

variable "zone" {
  description = "Where the Bigtable cluster is; one of the region."
  type        = string
}

variable "name" {
  description = "What the names of all things begin with."
  type        = string
  default     = "timebeam"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{3,18}$", var.name))
    error_message = "The name must have 4 to 19 small letters, digits and hyphens, a letter first."
  }
}

variable "labels" {
  description = "Labels of all things that take them."
  type        = map(string)
  default     = {}
}

variable "instance" {
  description = "An instance that is there already; null to make one."
  type        = string
  default     = null
}

variable "cluster_id" {
  description = "The cluster that the app profiles route to; of an instance that is there already it must be given."
  type        = string
  default     = null
}

variable "storage_type" {
  description = "Disks of the new instance: SSD or HDD. `timebeam plan` helps to choose."
  type        = string
  default     = "SSD"
}

variable "nodes" {
  description = "Fewest and most nodes of the new cluster; `timebeam plan` reckons how many."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 3 }
}

variable "max_age_days" {
  description = "How long cells are kept, by name of table without prefix; docs/operate/maintenance.md says what age means."
  type        = map(number)
  default     = {}
}

variable "extra_tables" {
  description = "More tables: name without prefix, to versions by family. For declared tables, and for --meta."
  type        = map(map(number))
  default     = {}
}

variable "backup_days" {
  description = "How long the daily backup of each table is kept, 3 to 90 days; 0 for no backups."
  type        = number
  default     = 7

  validation {
    condition     = var.backup_days == 0 || (var.backup_days >= 3 && var.backup_days <= 90)
    error_message = "Backups are kept from 3 to 90 days, or not made with 0."
  }
}

variable "settings_file" {
  description = "Path of a timebeam.toml (docs/reference/settings.md), whose settings both jobs and the tables take; what `layout`, `ingest` and `rollup` give goes before them. Null for none."
  type        = string
  default     = null
}

variable "settings_profile" {
  description = "The profile of the settings file; null for the settings at its top alone."
  type        = string
  default     = null
}

variable "rollup_config_file" {
  description = "Path of the rollup configuration (docs/use/rollups.md); null for no rollups."
  type        = string
  default     = null
}

variable "repository" {
  description = "Where templates/build puts the images: REGION-docker.pkg.dev/PROJECT/NAME."
  type        = string
}

variable "tag" {
  description = "The tag of the images. With a new one the stream is updated; a tag is never used twice."
  type        = string
}

variable "bucket" {
  description = "gs://BUCKET, or a folder in one, where templates/build puts the templates."
  type        = string

  validation {
    condition     = can(regex("^gs://[^/]+(/.*[^/])?$", var.bucket))
    error_message = "Give gs://BUCKET or gs://BUCKET/FOLDER, without a slash at the end."
  }
}

variable "max_workers" {
  description = "Most workers of each job."
  type        = object({ ingest = optional(number, 10), rollup = optional(number, 10), delete = optional(number, 10), archive = optional(number, 10) })
  default     = {}
}

variable "machine_type" {
  description = "Machines of the workers."
  type        = string
  default     = "n2-standard-2"
}

variable "network" {
  description = "The network of the workers; null for the default one, or that of the subnetwork."
  type        = string
  default     = null
}

variable "kms_key" {
  description = "projects/P/locations/REGION/keyRings/R/cryptoKeys/K to encrypt buckets, topics, jobs and the new instance; null for Google's keys."
  type        = string
  default     = null
}

variable "experiments" {
  description = "More experiments and service options of the Dataflow jobs."
  type        = list(string)
  default     = []
}

variable "enable_apis" {
  description = "Whether the module turns on the APIs that it needs; false where another team does."
  type        = bool
  default     = true
}

variable "launchers" {
  description = "Who else may launch the templates: user:NAME@DOMAIN, group:..., serviceAccount:..."
  type        = list(string)
  default     = []
}

variable "alert_cpu" {
  description = "Alert when the CPU of the Bigtable cluster is above this share for a quarter of an hour."
  type        = number
  default     = 0.8
}

variable "alert_storage" {
  description = "Alert when the Bigtable cluster holds more than this share of what its nodes can store."
  type        = number
  default     = 0.7
}

variable "subnetwork" {
  description = "regions/REGION/subnetworks/NAME; null for the default network."
  type        = string
  default     = null
}

variable "schedule" {
  description = "When the nightly rollup starts, as cron has it, in UTC; later than points are late."
  type        = string
  default     = "15 2 * * *"
}

variable "archive_schedule" {
  description = "When the nightly `timebeam archive` starts, as cron has it, in UTC; null for none. It needs `archive = true` in `layout`; with delete_source in `archive`, a run deletes what the one before has archived."
  type        = string
  default     = null
}

variable "delete_schedule" {
  description = "When the nightly `timebeam delete` starts, as cron has it, in UTC; null for none. What it deletes is `[retention]` of the settings file, or keep_days of `delete`."
  type        = string
  default     = null
}

variable "notification_channels" {
  description = "Who is told of alerts."
  type        = list(string)
  default     = []
}

variable "backlog_seconds" {
  description = "Alert when a message has waited so long."
  type        = number
  default     = 300
}
