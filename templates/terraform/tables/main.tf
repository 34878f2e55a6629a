# The tables, families and garbage collection of a layout, as `timebeam tables create` makes them. No provider:
# this module is arithmetic, and is tested without the cloud.

locals {
  layout  = jsondecode(file("${path.module}/layouts.json"))[var.layout]
  rollups = var.rollup_config == null ? null : jsondecode(var.rollup_config)

  # Of the retention classes of kairosdb, as of all families: only the newest version of a cell counts.
  newest = 1

  # Retention classes: a family each, beside that of points kept forever.
  layout_tables = {
    for name, table in local.layout : name => {
      ages    = table.ages
      salted  = table.salted
      family  = table.families
      classes = { for days in var.retention_days : "${table.class_prefix}${days}" => local.newest if table.class_prefix != null }
    }
  }

  intervals  = local.rollups == null ? [] : local.rollups.intervals
  has_groups = try(length(local.rollups.timebeam.preAggregates) > 0, false)
  rollup_names = distinct(flatten([
    for one in local.intervals : concat(
      try(one.defaultInterval, false) ? [] : [one.table],
      local.has_groups ? [one.preAggregationTable] : [],
    )
  ]))

  tables = merge(
    { for name, one in local.layout_tables : name => { families = merge(one.family, one.classes), ages = one.ages, salted = one.salted } },
    { for name in local.rollup_names : name => { families = { t = 1 }, ages = true, salted = true } },
    local.rollups == null ? {} : { tsdb-touched = { families = { t = 1 }, ages = false, salted = false } },
    var.archive ? { archive = { families = { t = 1, s = 1 }, ages = false, salted = false } } : {},
    { timebeam = { families = { settings = 1 }, ages = false, salted = false } }, # the first ingest stores the settings
    { for name, families in var.extra_tables : name => { families = families, ages = true, salted = false } },
  )

  # Keys begin with the salt, so that a table that is split between its buckets is spread from the first
  # write on. Terraform's texts are UTF-8: buckets from 128 on stay together.
  salt_zeros = join("", [for _ in range(max(0, var.salt_width - 1)) : "\\u0000"])
  salt_splits = var.salt_width == 0 ? [] : [
    for bucket in range(1, min(var.salt_buckets, 128)) :
    jsondecode(format("\"%s\\u%04x\"", local.salt_zeros, bucket))
  ]
}
