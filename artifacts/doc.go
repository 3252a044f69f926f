// Package artifacts keeps files: what agents and their users upload and make.
// An artifact has a name, belongs to a session, or, when its name begins with
// "user:", to the user, and has versions numbered from 0, each saved whole.
//
// # How a save becomes a version
//
// The bytes come as a stream, and no transaction is open while they come. A save
// first writes a row for itself that has no version number, then its chunks,
// each group of them in a short transaction, and at the end one transaction
// gives it its artifact, its number and its sealed description. Until then
// nobody can read it; after that it never changes. A save that breaks off
// deletes what it wrote, and when even that fails, the worker's Sweep does, as
// soon as nothing has touched the row for Abandoned.
//
// Each of these transactions passes the database's guard, so that a fence or a
// tombstone that goes up in the middle refuses the next group, and the end.
//
// Deleting works the other way round: one transaction takes the numbers away,
// after which nobody reads the versions, and then the chunks go in batches.
//
// # Sealing
//
// Names, descriptions and bytes are sealed under the key of their owner's
// content (class 0 of the key tree): erasing the session, or the user, takes the
// key. A chunk is bound to its owner, to its save, to its place and to whether
// it is the last; the description of a version is bound to owner, artifact,
// number and save, and holds size and number of chunks. So nothing that is cut
// off, reordered, swapped between versions or copied elsewhere opens.
package artifacts
