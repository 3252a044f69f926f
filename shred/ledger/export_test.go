package ledger

// OpenWatched opens a folder for somebody who looks on at each system call that
// changes it, and may die in it.
func OpenWatched(dir string, before, after func(op, name string)) (*Folder, error) {
	return openFolder(dir, disk{before: before, after: after})
}
