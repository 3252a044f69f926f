#!/usr/bin/env bash
# Checks the model of the fence: it must hold as it is, and fail with each part
# of the design taken away. Needs spin and a C compiler (scripts/setup.sh --model
# installs them).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# run NAME SPIN-DEFINES C-DEFINES RUN-FLAGS: prints the number of errors that spin found.
run() {
  rm -f pan* ./*.trail
  # shellcheck disable=SC2086
  spin -a $2 "$here/fence.pml" >spin.log 2>&1 || { cat spin.log >&2; exit 1; }
  # shellcheck disable=SC2086
  cc -O2 -w $3 -o pan pan.c
  # shellcheck disable=SC2086
  ./pan $4 >"$1.log" 2>&1
  if grep -q 'max search depth too small\|out of memory' "$1.log"; then
    cat "$1.log" >&2
    exit 1
  fi
  sed -n 's/.*errors: \([0-9]*\).*/\1/p' "$1.log"
}

states() { sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$1.log"; }

passed=0 failed=0
ok() { passed=$((passed + 1)); printf 'ok    %s\n' "$1"; }
bad() { failed=$((failed + 1)); printf 'FAIL  %s\n' "$1"; }

errors=$(run holds '' '-DSAFETY -DCOLLAPSE' '-m200000')
if [ "$errors" = 0 ]; then ok "safety holds ($(states holds) states)"; else bad "safety: $errors errors"; fi

errors=$(run ends '-DLIVENESS -DCRASHES=0 -DROLLBACKS=0 -DWRITERS=2' '-DCOLLAPSE -DNFAIR=4' '-a -f -m200000 -N ends')
if [ "$errors" = 0 ]; then ok "the erasure ends ($(states ends) states)"; else bad "liveness: $errors errors"; fi

for part in NO_LOCK NO_RECHECK LOCK_FIRST_COMMIT_LATER NO_ERASED_BEFORE NO_BURY NO_GATE; do
  defines="-D$part"
  errors=$(run "$part" "$defines" '-DSAFETY -DCOLLAPSE' '-m200000')
  if [ "$errors" != 0 ] && grep -q 'assertion violated' "$part.log"; then ok "fails without: $part"; else bad "holds even without: $part"; fi
done

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
