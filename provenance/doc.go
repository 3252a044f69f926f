// Package provenance is the directory of everybody memd ever saw: the subjects
// of a tenant and the sessions of a subject, each with a number that is given
// out once.
//
// Ids are stored sealed and looked up by keyed digest. A number is what rows,
// key paths and journals carry; it names nobody without the directory, and the
// directory names nobody without the tenant's key tree.
//
// The directory is append-only. A forgotten user's subject is retired and a
// forgotten session stays as a stub, so that neither number comes back.
package provenance
