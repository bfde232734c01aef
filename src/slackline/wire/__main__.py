"""Prints the C++ header on stdout: `python -m slackline.wire > native/include/slackline/wire.h`."""

import sys

from slackline.wire._generate import cpp_header

sys.stdout.write(cpp_header())
