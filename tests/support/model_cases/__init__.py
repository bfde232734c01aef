"""Models and training loops that are drawn from one integer, for tests that compare training with
the training of one process.

parts         the kinds of parts that models have: layers, gates, custom functions, hooks
wraps         the ways to run a part: checkpointed, within autocast, gated, cut off by `detach`
stages        a stage: its parts between the tensors that it takes and the tensors that it sends
cases         a case: the description of a model and its loop, which prints itself
draw          the case of a seed
shrink        cases that are a little smaller than a given one
failures      the search for a small case that fails like a given one, and reports
programs      the loop of a case, driven over anything that trains: schedules, wrappers, one process
pipeline      a rank's stages, trained by slackline.pipeline.Schedule
replicas      a replica of a whole model, trained by slackline.overlap.DataParallel
one_process   the expected results, from one process that runs the microbatches one after the other
results       what a step leaves behind, and the first difference between two results
lanes         four ranks that stay and train case after case
"""
