"""Stages for the tests of the GPU benchmark's runner, in a module that their ranks can import."""

import threading


def run(rank):
    rank.note("begun", pid=0)
    if rank.stage == "hangs" and rank.rank == 1:
        wait_for_ever()
    if rank.stage == "fails" and rank.rank == 1:
        raise ValueError("rank 1 has had enough")
    if rank.stage == "fails":
        wait_for_ever()
    rank.skip("the rest", "a test")


def wait_for_ever():
    threading.Event().wait()
