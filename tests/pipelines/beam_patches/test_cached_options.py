"""Beam's options whose views are made once."""

from __future__ import annotations

import pickle

from apache_beam.options.pipeline_options import DirectOptions, GoogleCloudOptions, PipelineOptions

from timebeam.pipelines.beam_patches.cached import CachedOptions

_FLAGS = ["--direct_num_workers=3", "--project=p", "--impersonate_service_account=a@b"]


def test_views_have_the_values_of_beams_own() -> None:
    options = CachedOptions(_FLAGS)
    assert options.view_as(DirectOptions) is options.view_as(DirectOptions)
    assert options.view_as(DirectOptions).direct_num_workers == 3
    assert options.get_all_options() == PipelineOptions(_FLAGS).get_all_options()


def test_what_is_set_in_one_view_is_seen_in_all() -> None:
    options = CachedOptions(_FLAGS)
    view = options.view_as(GoogleCloudOptions)
    view.view_as(DirectOptions).direct_num_workers = 5
    view.project = "q"
    assert options.view_as(DirectOptions).direct_num_workers == 5
    assert options.view_as(GoogleCloudOptions).project == "q"


def test_pickled_options_leave_out_what_beams_own_leave_out() -> None:
    options = CachedOptions(_FLAGS)
    assert options.view_as(GoogleCloudOptions).impersonate_service_account == "a@b"
    unpickled = pickle.loads(pickle.dumps(options))
    assert unpickled.view_as(GoogleCloudOptions).impersonate_service_account is None
    assert unpickled.view_as(GoogleCloudOptions).project == "p"
