"""A rank on a host of a lab: the program that LabRanks starts. Its argument is a descriptor."""

import sys
from multiprocessing.connection import Connection

if __name__ == "__main__":
    connection = Connection(int(sys.argv[1]))
    sys.path[:] = connection.recv()
    from _harness.ranks import serve

    performer, place = connection.recv()
    serve(performer, place, {}, connection)
