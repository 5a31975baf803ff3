"""`python -m myqueue.cli`: the command line without its installed script."""

import sys

from myqueue.cli import main

sys.exit(main())
