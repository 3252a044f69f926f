#!/usr/bin/env bash
# Installs what memd is built and tested with: PostgreSQL 15 or newer with its
# server programs, and pgvector 0.8 for it. Checks Go. Safe to run again and
# again: when nothing is missing it says so and ends within a second.
#
#   scripts/setup.sh           install what is missing
#   scripts/setup.sh --check   only look; non-zero when something is missing
#   scripts/setup.sh --model   install the model checker (spin and a C compiler) instead
#
# MEMD_PG_BIN names a folder of PostgreSQL programs to use instead of searching.
set -euo pipefail

readonly min_postgres=15
readonly min_vector=0.8.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

# at_least A B: version A is B or newer.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo: $*"
  fi
}

# servers prints "VERSION BINDIR" of each PostgreSQL with server programs,
# newest first. internal/cluster searches the same places.
servers() {
  local dir version
  {
    if [ -n "${MEMD_PG_BIN:-}" ]; then
      printf '%s\n' "$MEMD_PG_BIN"
    else
      printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
        /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin \
        /home/linuxbrew/.linuxbrew/opt/postgresql@*/bin /usr/local/pgsql/bin
      if command -v pg_config >/dev/null; then pg_config --bindir; fi
    fi
  } | while read -r dir; do
    if [ ! -x "$dir/postgres" ] || [ ! -x "$dir/initdb" ]; then continue; fi
    version=$("$dir/postgres" --version | awk '{print $3}')
    at_least "$version" "$min_postgres" && printf '%s %s\n' "${version%%[!0-9.]*}" "$dir"
  done | sort -rV -u
}

# vector_of BINDIR prints the version of the pgvector that this server has.
vector_of() {
  local share
  share=$("$1/pg_config" --sharedir 2>/dev/null) || return 0
  sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" "$share/extension/vector.control" 2>/dev/null || true
}

# complete prints the newest server that has a pgvector new enough, or fails.
complete() {
  local version dir vector
  while read -r version dir; do
    [ -n "$dir" ] || continue
    vector=$(vector_of "$dir")
    if [ -n "$vector" ] && at_least "$vector" "$min_vector"; then
      printf 'PostgreSQL %s with pgvector %s in %s\n' "$version" "$vector" "$dir"
      return 0
    fi
  done <<<"$(servers)"
  return 1
}

check_go() {
  local want have
  want=$(awk '$1 == "go" {print $2}' "$root/go.mod")
  command -v go >/dev/null ||
    die "Go is missing: install Go $want or newer from https://go.dev/dl/ and put its bin folder on PATH"
  # Asked inside the module, so that a go command that fetches its own
  # toolchain counts with the one that it would use.
  have=$(cd "$root" && go env GOVERSION 2>&1) ||
    die "Go $want or newer is needed, and the go command says: $have"
  at_least "${have#go}" "$want" ||
    die "Go $want or newer is needed and $have is installed: https://go.dev/dl/"
  say "$have (go.mod asks for $want)"
}

# apt_get shows what apt says only when it fails.
apt_get() {
  local out
  out=$(as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" 2>&1) || {
    printf '%s\n' "$out" >&2
    return 1
  }
}

apt_install() {
  say "installing $*"
  apt_get install -y --no-install-recommends "$@"
}

# apt_version PACKAGE prints the version that apt would install, without epoch.
apt_version() {
  apt-cache policy "$1" 2>/dev/null | awk '$1 == "Candidate:" && $2 != "(none)" {sub(/^[0-9]+:/, "", $2); print $2}'
}

# apt_majors PATTERN prints the PostgreSQL majors that apt offers it for, newest first.
apt_majors() {
  apt-cache search --names-only "^postgresql-[0-9]+$1\$" |
    sed -n 's/^postgresql-\([0-9]*\).*/\1/p' | sort -rn -u |
    awk -v min="$min_postgres" '$1 >= min'
}

# build_vector MAJOR builds Debian's own source package of the next release
# for a release that has PostgreSQL but no pgvector. Its list of sources is
# private: neither /etc/apt nor apt's state is touched. The mirror is the
# one that the system uses already, and apt verifies the signatures.
build_vector() {
  local major=$1 site work log apt version
  site=$(apt-get indextargets --format "\$(SITE)" "Created-By: Packages" "Codename: $VERSION_CODENAME" | head -n 1)
  [ -n "$site" ] || die "apt knows no mirror for $VERSION_CODENAME; install pgvector $min_vector or newer for PostgreSQL $major by hand"
  apt_install "postgresql-server-dev-$major" build-essential dpkg-dev

  work=$(mktemp -d)
  # shellcheck disable=SC2064 # expanded now: the variable is local
  trap "rm -rf '$work'" EXIT
  chmod 755 "$work"
  log=$work/log
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/src"
  printf 'deb-src [signed-by=%s] %s trixie main\n' /usr/share/keyrings/debian-archive-keyring.gpg "$site" >"$work/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)

  say "building pgvector for PostgreSQL $major from Debian's source package (about half a minute)"
  if ! {
    "${apt[@]}" update &&
      (cd "$work/src" && "${apt[@]}" source pgvector)
  } >"$log" 2>&1; then
    cat "$log" >&2
    die "fetching the source package of pgvector did not work"
  fi
  cd "$work"/src/pgvector-*/
  version=$(sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" vector.control)
  at_least "$version" "$min_vector" || die "the source package is pgvector $version, and $min_vector is needed"
  # OPTFLAGS empty: without it the library would only run on this processor.
  # Without LLVM: inlining of pgvector's functions by the JIT is not worth a clang.
  local make=(make OPTFLAGS= with_llvm=no "PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config")
  if ! { "${make[@]}" -j "$(nproc)" && as_root "${make[@]}" install; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "building pgvector $version did not work"
  fi
  cd "$root"
}

with_apt() {
  local major dir version
  say "reading the package lists"
  apt_get update || say "apt-get update reported errors; going on with the lists there are"

  # A server that is there keeps its version: look for its pgvector first.
  while read -r version dir; do
    major=${version%%.*}
    [ "$dir" = "/usr/lib/postgresql/$major/bin" ] || continue
    if at_least "$(apt_version "postgresql-$major-pgvector")" "$min_vector"; then
      apt_install "postgresql-$major-pgvector"
      return
    fi
  done <<<"$(servers)"

  for major in $(apt_majors -pgvector); do
    if at_least "$(apt_version "postgresql-$major-pgvector")" "$min_vector"; then
      apt_install "postgresql-$major" "postgresql-$major-pgvector"
      return
    fi
  done

  if [ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ]; then
    [ -x /usr/lib/postgresql/15/bin/postgres ] || apt_install postgresql-15
    build_vector 15
    return
  fi
  die "${PRETTY_NAME:-this system} offers no PostgreSQL $min_postgres or newer with pgvector $min_vector or newer." \
    "Add PostgreSQL's own package source (https://wiki.postgresql.org/wiki/Apt) and run this again," \
    "or install postgresql-17 and postgresql-17-pgvector from it yourself."
}

with_brew() {
  say "installing postgresql@17 and pgvector with Homebrew"
  brew install --quiet postgresql@17 pgvector
}

model_checker() {
  if command -v spin >/dev/null && command -v cc >/dev/null; then
    return
  fi
  if command -v apt-get >/dev/null; then
    apt_get update || say "apt-get update reported errors; going on with the lists there are"
    apt_install spin gcc libc6-dev
  elif command -v brew >/dev/null; then
    say "installing spin with Homebrew"
    brew install --quiet spin
  else
    die "install spin (https://spinroot.com) and a C compiler by hand"
  fi
}

main() {
  local found
  if [ "${1:-}" = --model ]; then
    model_checker
    return
  fi
  check_go
  if found=$(complete); then
    say "$found"
    say "nothing to install"
    return
  fi
  [ "${1:-}" != --check ] || die "no PostgreSQL $min_postgres or newer with pgvector $min_vector or newer; run scripts/setup.sh"
  [ -z "${MEMD_PG_BIN:-}" ] || die "MEMD_PG_BIN=$MEMD_PG_BIN is no PostgreSQL $min_postgres or newer with pgvector $min_vector or newer"

  if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    . /etc/os-release
  fi
  if command -v apt-get >/dev/null; then
    with_apt
  elif command -v brew >/dev/null; then
    with_brew
  else
    die "${PRETTY_NAME:-$(uname -s)} is not a system that this script knows. Install by hand, then run it again:" \
      "  PostgreSQL $min_postgres or newer with its server programs (initdb, postgres, pg_dump)" \
      "  pgvector $min_vector or newer for that PostgreSQL" \
      "Fedora: dnf install postgresql-server pgvector; Alpine: apk add postgresql17 postgresql17-client postgresql-pgvector;" \
      "Arch: pacman -S postgresql pgvector. Otherwise: https://github.com/pgvector/pgvector#installation" \
      "If the programs are in an unusual folder, set MEMD_PG_BIN to it."
  fi
  found=$(complete) || die "the installation ended, but no PostgreSQL $min_postgres with pgvector $min_vector can be found"
  say "$found"
}

main "$@"
