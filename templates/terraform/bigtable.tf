locals {
  instance   = var.instance == null ? google_bigtable_instance.this[0].name : var.instance
  cluster_id = coalesce(var.cluster_id, "${var.name}-1")
  families = merge([
    for table, one in module.tables.tables : {
      for family, rule in one.families : "${table}/${family}" => { table = table, family = family, rule = rule }
    }
  ]...)
}

module "settings" {
  source = "./settings"

  text    = var.settings_file == null ? "" : file(var.settings_file)
  profile = var.settings_profile
  given   = { for name, value in var.layout : name => tostring(value) if value != null }
}

module "tables" {
  source = "./tables"

  layout         = module.settings.values.layout
  table_prefix   = module.settings.values.table_prefix
  salt_width     = module.settings.values.salt_width
  salt_buckets   = module.settings.values.salt_buckets
  retention_days = [for days in compact(split(",", module.settings.values.retention)) : tonumber(trimspace(days))]
  rollup_config  = module.settings.values.layout == "opentsdb" ? local.rollup_config : null
  archive        = module.settings.values.archive
  max_age_days   = var.max_age_days
  extra_tables   = var.extra_tables
}

resource "google_bigtable_instance" "this" {
  count = var.instance == null ? 1 : 0

  project             = var.project
  name                = var.name
  labels              = var.labels
  deletion_protection = true
  depends_on          = [google_project_service.this]

  cluster {
    cluster_id   = local.cluster_id
    zone         = var.zone
    storage_type = var.storage_type
    kms_key_name = var.kms_key

    autoscaling_config {
      min_nodes  = var.nodes.min
      max_nodes  = var.nodes.max
      cpu_target = 60
    }
  }
}

resource "google_bigtable_table" "this" {
  for_each = module.tables.tables

  project             = var.project
  instance_name       = local.instance
  name                = each.key
  split_keys          = each.value.split_keys
  deletion_protection = "PROTECTED"

  dynamic "column_family" {
    for_each = each.value.families

    content {
      family = column_family.key
    }
  }

  dynamic "automated_backup_policy" {
    for_each = var.backup_days == 0 ? [] : [var.backup_days]

    content {
      retention_period = "${automated_backup_policy.value * 24}h0m0s"
      frequency        = "24h0m0s"
    }
  }

  lifecycle {
    # Splits are for the first day; Bigtable moves them as it likes afterwards.
    ignore_changes = [split_keys]
  }
}

resource "google_bigtable_gc_policy" "this" {
  for_each = local.families

  project         = var.project
  instance_name   = local.instance
  table           = google_bigtable_table.this[each.value.table].name
  column_family   = each.value.family
  gc_rules        = each.value.rule
  deletion_policy = "ABANDON"
}

# UIDs and appends need single-row transactions, which only one cluster can give.
resource "google_bigtable_app_profile" "ingest" {
  project        = var.project
  instance       = local.instance
  app_profile_id = "${var.name}-ingest"
  description    = "The streaming ingest: points and UIDs."

  single_cluster_routing {
    cluster_id                 = local.cluster_id
    allow_transactional_writes = true
  }

  standard_isolation {
    priority = "PRIORITY_HIGH"
  }
}

resource "google_bigtable_app_profile" "batch" {
  project        = var.project
  instance       = local.instance
  app_profile_id = "${var.name}-batch"
  description    = "Rollups, compaction and backfills: after those who wait for an answer."

  single_cluster_routing {
    cluster_id                 = local.cluster_id
    allow_transactional_writes = true
  }

  standard_isolation {
    priority = "PRIORITY_LOW"
  }
}
