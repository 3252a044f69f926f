package shred

import "context"

// opening is a tree that is being opened.
type opening struct {
	done chan struct{}
	tree *Tree
	err  error
}

// openAhead begins to open a state, if it is wanted.
func (r *Rotator) openAhead(ctx context.Context, row treeRow, wanted bool) *opening {
	o := &opening{done: make(chan struct{})}
	if !wanted {
		close(o.done)
		return o
	}
	go func() {
		defer close(o.done)
		o.tree, o.err = row.open(ctx, r.c.Worker)
	}()
	return o
}

// take waits for the tree, which the caller zeroes.
func (o *opening) take() (*Tree, error) {
	<-o.done
	t := o.tree
	o.tree = nil
	return t, o.err
}

// drop zeroes a tree that nobody took.
func (o *opening) drop() {
	if t, _ := o.take(); t != nil {
		t.Zero()
	}
}
