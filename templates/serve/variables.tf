variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where the service runs; that of the Bigtable cluster."
  type        = string
}

variable "name" {
  description = "What the names of the account and the service begin with."
  type        = string
  default     = "timebeam"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{3,18}$", var.name))
    error_message = "The name must have 4 to 19 small letters, digits and hyphens, a letter first."
  }
}

variable "labels" {
  description = "Labels of the service."
  type        = map(string)
  default     = {}
}

variable "image" {
  description = "The image of templates/serve/Dockerfile."
  type        = string
}

variable "instance" {
  description = "The Bigtable instance."
  type        = string
}

variable "layout" {
  description = "How points are stored: layout, table_prefix, tables, and settings of the tables, such as { layout = \"opentsdb\", salt_width = 1 }."
  type        = map(string)
}

variable "rollup_config" {
  description = "The rollup configuration, gs://BUCKET/OBJECT; null to read points alone."
  type        = string
  default     = null

  validation {
    condition     = var.rollup_config == null || can(regex("^gs://[^/]+/.+$", var.rollup_config))
    error_message = "The rollup configuration must be gs://BUCKET/OBJECT."
  }
}

variable "topic" {
  description = "The Pub/Sub topic that takes the points of producers, projects/P/topics/T; null to read alone."
  type        = string
  default     = null

  validation {
    condition     = var.topic == null || can(regex("^projects/[^/]+/topics/[^/]+$", var.topic))
    error_message = "The topic must be projects/P/topics/T."
  }
}

variable "options" {
  description = "Other options of timebeam serve, such as { max_points = 10000000 }."
  type        = map(string)
  default     = {}
}

variable "max_seconds" {
  description = "Seconds that a request may take; Cloud Run waits 30 more."
  type        = number
  default     = 60
}

variable "max_queries" {
  description = "Requests that a process works on at once; memory is this times cpu times what a request may need."
  type        = number
  default     = 4
}

variable "max_waiting" {
  description = "Requests of a process that wait; with more, Cloud Run starts another instance."
  type        = number
  default     = 16
}

variable "cpu" {
  description = "Processors of an instance, each with a process."
  type        = number
  default     = 2
}

variable "memory" {
  description = "Memory of an instance; docs/use/serve.md, Budgets, says what a request may need."
  type        = string
  default     = "8Gi"
}

variable "instances" {
  description = "Fewest and most instances; with none the first request waits for the start."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 4 }
}

variable "ingress" {
  description = "From where the service can be reached; callers need the role of an invoker in any case."
  type        = string
  default     = "INGRESS_TRAFFIC_ALL"

  validation {
    condition = contains(
      ["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.ingress
    )
    error_message = "The ingress must be one of Cloud Run's."
  }
}

variable "invokers" {
  description = "Who may send requests, such as group:TEAM or serviceAccount:EMAIL; everyone cannot be named."
  type        = list(string)
  default     = []

  validation {
    condition     = length(setintersection(var.invokers, ["allUsers", "allAuthenticatedUsers"])) == 0
    error_message = "The server has no authentication of its own: name callers, not all users."
  }
}
