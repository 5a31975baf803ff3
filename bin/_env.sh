# Read by the commands in this folder: makes and keeps `.venv`, the project's Python environment.
#
#   env_ready EXTRA...   make sure that .venv holds myqueue (editable) with these extras
#
# It costs some 20 ms when nothing is to be done. What makes that safe is .venv/myq-stamp, which
# is written last: without it the set-up was interrupted, and is done again from the start. The
# stamp says for which place and which Python the environment was made, for which setup.cfg and
# pyproject.toml, and with which extras. All messages go to stderr: stdout is the command's own.
#
# Settings: PYTHON=/path/to/python3.x picks the Python that the environment is made with.

ROOT=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)
VENV=$ROOT/.venv
STAMP=$VENV/myq-stamp
MARK=$VENV/myq-made-by-bin # says that .venv is ours to remove
LOG=$VENV/myq-setup.log

say() { printf 'myqueue: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

# Without a home, pip would make its cache in a folder called "~" or at the root of the disk.
if [ -z "${HOME:-}" ]; then
    unset HOME
    export PIP_NO_CACHE_DIR=1
fi
# Python does not start with a directory as its input.
[ ! -d /dev/stdin ] || die "standard input is a directory; name a file instead"
# Nothing of the caller's Python may leak into ours, and pip should only say what matters.
unset PYTHONHOME PYTHONPATH PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_PREFIX PIP_USER
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

# The three lines of the stamp.
place_line() { # fails if the environment's Python does not run (any more)
    local version
    version=$("$VENV/bin/python" -I -S -c 'import sys; print(sys.version.split()[0])' \
        2>&1 </dev/null) &&
        printf 'made in %s with Python %s\n' "$VENV" "$version"
}
packaging_line() {
    cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml" | cksum
}
merge_extras() { # "test server" "server" -> "server test"
    printf '%s\n' "$@" | tr ' ' '\n' | sed '/^$/d' | sort -u | paste -sd ' ' -
}

# Reads the stamp and sets: FRESH (made here, by this Python), HAVE (extras), and returns 0 if
# there is nothing to do for the extras asked for.
env_is_ready() {
    local place packaging
    FRESH=no HAVE=
    [ -f "$STAMP" ] || return 1
    { read -r place && read -r packaging && read -r HAVE; } <"$STAMP" || true
    [ "$place" = "$(place_line)" ] || return 1
    FRESH=yes
    [ "$packaging" = "$(packaging_line)" ] && [ "$(merge_extras "$HAVE" "$@")" = "$HAVE" ]
}

env_ready() {
    env_is_ready "$@" && return
    local python
    python=$(find_python) || exit 1
    [ -w "$ROOT" ] || die "cannot write to $ROOT, where .venv has to be made; use a copy you own"
    # Two commands may start at once: one sets up, the other waits, then finds all done. The
    # lock is on a file that always exists, and is gone with the process, however it ends.
    exec 9<"$ROOT/setup.cfg"
    "$python" -I -S -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("myqueue: another command is setting up .venv; waiting for it", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)' || exit 1
    env_is_ready "$@" || env_set_up "$python" "$(merge_extras "$HAVE" "$@")"
    exec 9<&-
}

# Prints the path of a Python that will do, or says what to install.
find_python() {
    local candidate found=
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        found=$("$candidate" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' \
            2>&1 </dev/null) || continue
        if "$candidate" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null; then
            "$candidate" -I -c 'import venv, ensurepip' 2>/dev/null </dev/null && {
                command -v "$candidate"
                return
            }
            die "Python $found ($candidate) lacks venv or pip. Debian and Ubuntu:" \
                "apt install python$found-venv; then run this again"
        fi
    done
    die "needs Python 3.11 or newer, found ${found:-none}. Install one (Debian 12 and Ubuntu" \
        "24.04: apt install python3 python3-venv), or name one: PYTHON=/path/to/python3 $0"
}

# env_set_up PYTHON "EXTRA EXTRA": makes or mends the environment, holding the lock.
env_set_up() {
    local python=$1 extras=$2
    if [ "$FRESH" = yes ]; then
        say "bringing .venv up to date [$extras]"
    else
        # Interrupted, moved, copied, or its Python is gone: cheaper to make than to mend.
        local why='first use'
        [ ! -f "$MARK" ] || {
            why='the last set-up was interrupted, or .venv was moved or lost its Python'
            rm -rf -- "$VENV"
        }
        rmdir -- "$VENV" 2>/dev/null || true
        [ ! -e "$VENV" ] ||
            die "$VENV was not made by this command; move it away: mv .venv .venv.old"
        say "$why: making $VENV (once; needs the network, takes about 20 s)"
    fi
    trap 'say "interrupted; the next run starts the set-up again"; trap - INT; kill -INT $$' INT
    mkdir -p "$VENV"
    [ "$FRESH" = yes ] || : >"$MARK"
    rm -f "$STAMP"
    : >"$LOG"
    if [ "$FRESH" != yes ]; then
        step "Python environment ($("$python" -V 2>&1))" "$python" -m venv "$VENV" ||
            env_failed "is the disk full, or python3-venv incomplete?"
    fi
    step "packages for [$extras]" "$VENV/bin/python" -m pip install \
        --editable "${ROOT}[${extras// /,}]" || env_failed \
        "no network? pip also takes packages from a folder: PIP_FIND_LINKS=DIR PIP_NO_INDEX=1 $0"
    { place_line && packaging_line && printf '%s\n' "$extras"; } >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
    trap - INT
}

# step TITLE COMMAND...: runs it with its output in the log; on a terminal, its last line is shown.
step() {
    local title=$1 line status=0 begin=$SECONDS
    shift
    if [ -t 2 ]; then
        "$@" 2>&1 | tee -a "$LOG" | while IFS= read -r line; do
            printf '\r\033[K  %s … %.*s' "$title" 50 "$line" >&2
        done || status=$?
        printf '\r\033[K' >&2
    else
        "$@" >>"$LOG" 2>&1 || status=$?
    fi
    [ $status -ne 0 ] || say "  $title: done, $((SECONDS - begin)) s"
    return $status
}

env_failed() {
    cat -- "$LOG" >&2
    die "the set-up failed (see above): $*"
}
