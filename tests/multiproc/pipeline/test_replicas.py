"""Tests of data-parallel replicas of a pipeline on a DeviceMesh."""

from pipeline_work import replicas


def test_each_stages_gradients_are_averaged_over_the_replicas_as_they_are_complete(job):
    job(4, replicas)
