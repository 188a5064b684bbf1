"""`python -m qkv`."""

import sys

from qkv.cli import main

sys.exit(main())
