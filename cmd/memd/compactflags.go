package main

import (
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/node"
)

// compactionFlags say how a worker compacts.
type compactionFlags struct {
	CompactURL     string `name:"compact-url" placeholder:"URL" help:"PostgreSQL connection string of memd_maintain, to the server itself and not to a pooler, to take the bytes of deleted rows out of the database's files, and to build sketches of scopes too large for memory. Without it nothing is compacted, and receipts say so, and such scopes are read row by row."`
	CompactDataDir string `name:"compact-data-dir" placeholder:"DIR" help:"A folder on the database's disk, seen from here: a rewrite is refused unless enough of it is free."`
	CompactDiskGiB int64  `name:"compact-disk-gib" placeholder:"N" help:"The size of the database's disk in GiB, where no folder of it can be seen: a managed database's."`
}

func (f *compactionFlags) compaction() node.Compaction {
	return node.Compaction{URL: f.CompactURL, Disk: compact.Disk{DataDir: f.CompactDataDir, Bytes: f.CompactDiskGiB << 30}}
}
