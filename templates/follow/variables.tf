variable "project" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Where the job runs; that of the Bigtable cluster."
  type        = string
}

variable "name" {
  description = "What the names of the account, the job and the alert begin with."
  type        = string
  default     = "timebeam"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{3,18}$", var.name))
    error_message = "The name must have 4 to 19 small letters, digits and hyphens, a letter first."
  }
}

variable "labels" {
  description = "Labels of the job and the alert."
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
  description = "How points are stored: the options of timebeam rollup under Layout, such as { layout = \"opentsdb\" }."
  type        = map(string)
}

variable "rollup_config" {
  description = "The rollup configuration, gs://BUCKET/OBJECT."
  type        = string

  validation {
    condition     = can(regex("^gs://[^/]+/.+$", var.rollup_config))
    error_message = "The rollup configuration must be gs://BUCKET/OBJECT."
  }
}

variable "dead_letters" {
  description = "Destination of rows that cannot be rolled up, gs://BUCKET/PREFIX."
  type        = string

  validation {
    condition     = can(regex("^gs://[^/]+/.+$", var.dead_letters))
    error_message = "The dead letters must go to gs://BUCKET/PREFIX."
  }
}

variable "options" {
  description = "Other options of timebeam rollup, such as { quiet_seconds = 120 }."
  type        = map(string)
  default     = {}
}

variable "lag_seconds" {
  description = "Lag in seconds above which the alert is sent."
  type        = number
  default     = 900
}

variable "notification_channels" {
  description = "Who gets the alert."
  type        = list(string)
  default     = []
}

variable "cpu" {
  description = "Processors of the job."
  type        = number
  default     = 2
}

variable "memory" {
  description = "Memory of the job."
  type        = string
  default     = "4Gi"
}
