#!/usr/bin/env bash
# The native core under sanitizers. Thread: a program of its own over the headers, since Python itself is not built for
# it. Address and undefined: the extension, built apart, under the tests that need no other process.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
cxx=${CXX:-g++}
mkdir -p build/sanitize

echo "== thread"
$cxx -std=c++17 -O1 -g -fsanitize=thread -Wall -Wextra -Wno-tsan -Isrc/native tests/native/stress.cpp -o build/sanitize/stress -pthread
TSAN_OPTIONS="halt_on_error=1" build/sanitize/stress
[ "${1:-}" = thread ] && exit 0

echo "== address, undefined"
build=build/sanitize/lib
MOTET_SANITIZE=address,undefined "$python" setup.py --quiet build_ext --build-lib $build --build-temp build/sanitize/temp
cp -r src/motet/. $build/motet.new && cp $build/motet/_native*.so $build/motet.new/ && rm -rf $build/motet && mv $build/motet.new $build/motet
# Python frees little at its end, and that is no fault of ours; numpy is not instrumented.
export ASAN_OPTIONS="detect_leaks=0:abort_on_error=1" UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
export LD_PRELOAD="$($cxx -print-file-name=libasan.so) $($cxx -print-file-name=libubsan.so)"
export PYTHONPATH="$PWD/$build" PYTHONMALLOC=malloc
"$python" -c "import motet._native as n; assert 'sanitize' in n.__file__, n.__file__"
"$python" -m pytest -p no:cacheprovider tests/native/test_native.py tests/native/test_recurrent.py tests/replay tests/test_publication.py
MOTET_PORTABLE=1 "$python" -m pytest -p no:cacheprovider tests/replay/test_replay.py tests/replay/test_replay_writers.py
echo "nothing found"
