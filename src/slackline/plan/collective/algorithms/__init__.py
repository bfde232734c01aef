"""The algorithms of collectives: generators of each member's instructions.

straight        direct and mesh plans: each contribution goes straight to the rank that adds it
ring, chain, torus, halving     plans in which ranks add and pass on partial sums
hierarchical    an all_reduce within hosts and between them
star            an aggregator between the ranks
dissemination   the barrier
"""
