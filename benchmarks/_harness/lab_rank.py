"""The program that LabRanks starts on a lab's host; its argument is a connection's descriptor."""

import sys
from multiprocessing.connection import Connection

if __name__ == "__main__":
    connection = Connection(int(sys.argv[1]))
    sys.path[:] = connection.recv()
    from _harness.ranks import serve

    performer, place = connection.recv()
    serve(performer, place, {}, connection)
