// Package codes finds which of many vectors may be nearest to a query while it
// holds a twentieth of them.
//
// A vector is rotated at random and each component's sign is kept, one bit, with
// one factor for the row: RaBitQ (J. Gao, C. Long: RaBitQ: Quantizing
// High-Dimensional Vectors with a Theoretical Error Bound for Approximate Nearest
// Neighbor Search. SIGMOD 2024). The rotation is three rounds of random sign
// flips and a fast Hadamard transform, which cost D log D; a vector is padded
// with zeros to a power of two, D.
//
// Two things can be told from a code. The Hamming distance between two codes
// says how far apart the vectors are, roughly, in a few instructions. The sum of
// the query's own components, each with the sign of the row's bit, divided by
// the factor, is an unbiased estimate of the cosine; its error is that of a
// random direction, sqrt((1-f²)/f²) / sqrt(D-1) for a row whose factor is f.
// So Narrow drops by distance what cannot matter, and orders the rest by
// estimate. How many of those are worth their exact score is told by a Narrowing
// as the scores come in, for data of every shape: see Next.
//
// A code is no encryption. Whoever has many, without the rotation, sees which
// are alike; with the rotation, roughly what the vectors are.
package codes
