"""The limit of open files: raised as far as the system lets us, never lowered."""

import subprocess
import sys

import pytest

LOOK = """
import resource, sys
from myqueue.wal.process_tuning import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
told = allow_open_files(int(sys.argv[3]))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert told == soft
print(soft, hard)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "after"),
    [(64, 512, 256, 256), (64, 512, 4096, 512), (128, 512, 100, 128), (512, 512, 512, 512)],
)
def test_what_is_wanted_or_what_there_is(soft: int, hard: int, wanted: int, after: int) -> None:
    words = [sys.executable, "-P", "-c", LOOK, *map(str, (soft, hard, wanted))]
    assert subprocess.check_output(words, text=True).split() == [str(after), str(hard)]
