// Package proto makes the Go code of the messages that are described in .proto files. It needs
// nothing that imports them.
package proto

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/bufbuild/protocompile"
	_ "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/pglimit/pglimit/internal/must"
)

var update = flag.Bool("update", false, "write kuadrantrls.pb.go")

// TestKuadrantProto: protoc-gen-go makes the same kuadrantrls.pb.go from kuadrantrls.proto. The
// packages of Envoy's messages have the files that it imports.
func TestKuadrantProto(t *testing.T) {
	t.Parallel()
	const dir, name = "../../../internal/ratelimit/kuadrantpb", "kuadrantrls.proto"
	linked := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		return protocompile.SearchResult{Desc: file}, err
	})
	compiler := protocompile.Compiler{SourceInfoMode: protocompile.SourceInfoStandard, Resolver: protocompile.CompositeResolver{
		&protocompile.SourceResolver{ImportPaths: []string{dir}}, linked,
	}}
	files, err := compiler.Compile(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name}, Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protodesc.ToFileDescriptorProto(file))
	}
	add(files[0])
	// As sent to a plugin, without the types of the compiler.
	wire := must.OK(proto.Marshal(request))(t)
	if err = proto.Unmarshal(wire, request); err != nil {
		t.Fatal(err)
	}
	plugin := must.OK(protogen.Options{}.New(request))(t)
	internal_gengo.GenerateFile(plugin, plugin.FilesByPath[name])
	response := plugin.Response()
	if response.GetError() != "" {
		t.Fatal(response.GetError())
	}
	made, path := []byte(response.GetFile()[0].GetContent()), filepath.Join(dir, response.GetFile()[0].GetName())
	if *update {
		if err = os.WriteFile(path, made, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := os.ReadFile(path); err != nil || !bytes.Equal(has, made) {
		t.Errorf("%s is not what its source makes; run this test with -update; error %v", path, err)
	}
}
