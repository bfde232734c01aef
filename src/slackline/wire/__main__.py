"""The command that prints the C++ header of the frame.

Usage: `python -m slackline.wire > native/include/slackline/wire.h`.
"""

import sys

from slackline.wire._generate import cpp_header

sys.stdout.write(cpp_header())
