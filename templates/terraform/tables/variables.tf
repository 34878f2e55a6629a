variable "layout" {
  description = "The layout of the points: opentsdb, heroic, heroic-readable or kairosdb; none for extra_tables only."
  type        = string

  validation {
    condition     = contains(keys(jsondecode(file("${path.module}/layouts.json"))), var.layout)
    error_message = "The layout must be one of layouts.json."
  }
}

variable "table_prefix" {
  description = "Put before the names of all tables."
  type        = string
  default     = ""
}

variable "salt_width" {
  description = "Bytes of salt in row keys."
  type        = number
  default     = 0
}

variable "salt_buckets" {
  description = "Salt buckets."
  type        = number
  default     = 20
}

variable "retention_days" {
  description = "kairosdb: retention classes, in days; each is a family."
  type        = list(number)
  default     = []
}

variable "rollup_config" {
  description = "opentsdb: the text of OpenTSDB's rollup configuration, for the tables in it."
  type        = string
  default     = null
}

variable "archive" {
  description = "Make the table of the archive."
  type        = bool
  default     = false
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
