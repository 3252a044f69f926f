#!/usr/bin/env bash
# Fails when gen/ is not what proto/ generates, when the API does not pass buf's
# lint, or when it breaks callers of the last release: the newest v* tag, else
# the commit before on main (in a checkout of main itself, its parent).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/generate.sh
readonly bin=$PWD/.cache/bin

drift=$(git status --porcelain -- proto gen third_party)
if [ -n "$drift" ]; then
  echo "verify: generated code is not up to date, or not committed:" >&2
  echo "$drift" >&2
  exit 1
fi

"$bin/buf" lint

# against: the newest commit that a release or main had and that has an API.
against=
for ref in "$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)" origin/main main 'HEAD^'; do
  if [ -z "$ref" ] || ! commit=$(git rev-parse --quiet --verify "$ref^{commit}"); then continue; fi
  if [ "$commit" = "$(git rev-parse HEAD)" ]; then continue; fi
  if git cat-file -e "$commit:proto/memd/v1" 2>/dev/null && git cat-file -e "$commit:buf.yaml" 2>/dev/null; then
    against=$commit
    break
  fi
done
if [ -z "$against" ]; then
  echo "verify: no earlier API to compare with: this is the first"
  exit 0
fi
# A folder, because buf cannot read a commit of a linked worktree by itself.
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git archive "$against" buf.yaml proto third_party | tar -x -C "$before"
"$bin/buf" breaking --against "$before"
echo "verify: compatible with $(git describe --tags --always "$against")"
