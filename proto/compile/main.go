// Command compile generates Go from the protocol buffers below proto/, as
// buf.gen.yaml says, without buf: buf takes minutes to build from source, and
// checking that the generated code is current should take seconds.
//
// Usage: compile PLUGINS OUT, where PLUGINS is a folder with protoc-gen-go and
// protoc-gen-connect-go. It is run in the root of the module.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

var (
	roots   = []string{"proto", "third_party/proto"}
	plugins = []string{"protoc-gen-go", "protoc-gen-connect-go"}
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compile PLUGINS OUT")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "compile:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pluginDir, out string) error {
	names, err := protoFiles(roots[0])
	if err != nil {
		return fmt.Errorf("listing the sources: %w", err)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: roots}),
		SourceInfoMode: protocompile.SourceInfoStandard, // Comments become Go comments.
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return fmt.Errorf("compiling: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: names, Parameter: proto.String("paths=source_relative"), ProtoFile: closure(files),
	}
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("clearing %s: %w", out, err)
	}
	for _, p := range plugins {
		if err := generate(ctx, filepath.Join(pluginDir, p), request, out); err != nil {
			return fmt.Errorf("running %s: %w", p, err)
		}
	}
	return nil
}

func protoFiles(root string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".proto") {
			names = append(names, name)
		}
		return err
	})
	return names, err
}

// closure lists the files and all that they import, imports first, as the
// plugin protocol demands.
func closure(files linker.Files) []*descriptorpb.FileDescriptorProto {
	seen := map[string]bool{}
	var all []*descriptorpb.FileDescriptorProto
	var visit func(f protoreflect.FileDescriptor)
	visit = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			visit(f.Imports().Get(i).FileDescriptor)
		}
		if r, ok := f.(linker.Result); ok {
			all = append(all, r.FileDescriptorProto()) // As written; converting would reorder options.
			return
		}
		all = append(all, protodesc.ToFileDescriptorProto(f))
	}
	for _, f := range files {
		visit(f)
	}
	return all
}

func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest, out string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	answer, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.GetFile() {
		name := filepath.Join(out, filepath.FromSlash(f.GetName()))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
