"""Pure data: what each rank does, as plans that are generated, printed, validated and priced.

collective/     how a collective moves and reduces its chunks
pipeline/       what each rank of a pipeline computes, and when
"""
