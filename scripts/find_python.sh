#!/bin/sh
# Prints a Python interpreter of 3.10 or newer, or one line that says what is missing. $PYTHON wins.
# Owns: finding the first interpreter. Does not own: anything else that set-up needs (prerequisites.py).
for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    [ -n "$candidate" ] || continue
    if path=$("$candidate" -c 'import sys; sys.version_info >= (3, 10) or sys.exit(1); print(sys.executable)' 2>/dev/null </dev/null) &&
        [ -n "$path" ]
    then
        echo "$path"
        exit 0
    fi
    if [ "$candidate" = "${PYTHON:-}" ]; then
        echo "missing: PYTHON=$PYTHON is not a Python of 3.10 or newer" >&2
        exit 2
    fi
done
echo "missing: python 3.10 or newer (put python3 on the PATH, or run: make PYTHON=/path/to/python3 …)" >&2
exit 2
