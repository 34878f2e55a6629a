# The settings of a timebeam.toml that decide which tables there are. Terraform reads no TOML: this reads the lines
# KEY = VALUE whose value is a string, a number or a truth value, as `timebeam init` writes them. No provider: it is
# tested without the cloud against the program's own reader.

variable "text" {
  description = "The text of timebeam.toml; empty for none."
  type        = string
}

variable "profile" {
  description = "The profile; null for the settings at the top alone."
  type        = string
  default     = null
}

variable "given" {
  description = "Settings that go before those of the file."
  type        = map(string)
  default     = {}
}

locals {
  line     = "(?m)^[ \\t]*([a-z_]+)[ \\t]*=[ \\t]*(?:\"([^\"\\\\]*)\"|'([^']*)'|([0-9]+|true|false))[ \\t\\r]*(?:#.*)?$"
  sections = split("\n[", "\n${var.text}")
  own = var.profile == null ? [] : [
    for section in local.sections : section if startswith(replace(section, "/[ \t]/", ""), "profiles.${coalesce(var.profile, "-")}]")
  ]
  read = [
    for section in concat([local.sections[0]], local.own) : {
      for found in regexall(local.line, section) : found[0] => join("", [for value in slice(found, 1, 4) : value if value != null])
    }
  ]
}

output "values" {
  description = "The settings of the tables, and the packing, with the program's defaults."
  value = merge(
    { table_prefix = "", salt_width = "0", salt_buckets = "20", retention = "", packing = "points", archive = "false", marked_since = "" },
    merge(local.read...),
    var.given,
  )

  precondition {
    condition     = can(merge(merge(local.read...), var.given).layout)
    error_message = "Give layout in `layout`, or at the top of the settings file or in its profile."
  }

  precondition {
    condition     = var.profile == null || length(local.own) == 1
    error_message = "The settings file has no such profile."
  }
}
