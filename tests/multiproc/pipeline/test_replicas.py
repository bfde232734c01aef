"""Tests of data-parallel replicas of a pipeline on a DeviceMesh."""

import pytest
from pipeline_replicas import refused, sharded, sharded_in_every_way
from pipeline_work import replicas


def test_each_stages_gradients_are_averaged_over_the_replicas_as_they_are_complete(job):
    job(4, replicas)


def test_stages_that_fsdp2_shards_give_the_gradients_of_one_process(job):
    job(4, sharded)


@pytest.mark.slow
def test_stages_that_fsdp2_shards_in_every_way_give_the_gradients_of_one_process(job):
    job(4, sharded_in_every_way)


def test_replicas_that_reduce_in_every_microbatch_are_refused_by_name(job):
    each = "which reduces gradients in the backward of each microbatch: "
    for rank, found in enumerate(job(2, refused)):
        assert [message.partition(each)[0] for message in found] == [
            f"UsageError: stage {rank}: its module is a DistributedDataParallel, ",
            f'UsageError: stage {rank}: its module "1.0" is a DistributedDataParallel, ',
            f"UsageError: stage {rank}: its module is a FullyShardedDataParallel, ",
            f'UsageError: stage {rank}: its module "0" is a FullyShardedDataParallel, ',
            f'UsageError: stage {rank}: its module "0" is a slackline.overlap.DataParallel, which '
            "must wrap the stage's whole module",
            f'UsageError: stage {rank}: its module "2" is a DistributedDataParallel, ',
        ]
        assert found[0].endswith(
            f"{each}wrap the stage's whole module in slackline.overlap.DataParallel(module, "
            "optimizer, process_group=...), or shard it with torch.distributed.fsdp.fully_shard"
        )
