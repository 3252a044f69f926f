// Package node puts the parts together into the processes that memd runs as: a
// server, which answers the API and can neither destroy a key nor write a key
// tree, and a worker, which carries out erasures and holds the two KMS
// identities that can. memd dev runs one of each in one process.
package node
