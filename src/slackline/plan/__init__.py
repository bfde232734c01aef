"""Plans as data: lists of instructions for each rank, generated, printed, validated and priced.

collective/     how a collective moves and reduces its chunks
pipeline/       which computations each rank of a pipeline runs, in which order
partition/      the layers and the host of each pipeline stage
"""
