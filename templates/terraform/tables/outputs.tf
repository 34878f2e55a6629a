output "tables" {
  description = "By name with prefix: families with the JSON of their garbage collection rule, and split keys."
  value = {
    for name, table in local.tables : "${var.table_prefix}${name}" => {
      families = {
        for family, versions in table.families : family => (
          contains(keys(var.max_age_days), name)
          ? jsonencode({ mode = "union", rules = [{ max_version = versions }, { max_age = "${var.max_age_days[name] * 24}h" }] })
          : jsonencode({ rules = [{ max_version = versions }] })
        )
      }
      split_keys = table.salted ? local.salt_splits : []
    }
  }

  precondition {
    condition     = alltrue([for name in keys(var.max_age_days) : try(local.tables[name].ages, false)])
    error_message = "max_age_days names a table that is not there, or one whose names, index entries or marks must not expire."
  }

  precondition {
    condition     = var.rollup_config == null || var.layout == "opentsdb"
    error_message = "Rollup tables of other layouts come by extra_tables: `timebeam tables create --dry-run` names them."
  }
}
