// Renders the chart as Helm does: `render FOLDER NAMESPACE VALUES…` prints all objects as a list in
// JSON. VALUES are files of JSON that are laid over values.yaml, the later one over the earlier.
//
// Helm's language is Go's templates with the functions of sprig and a few of Helm's own; those that
// the chart uses are here. The cluster is said to be Kubernetes 1.30. It does not know hooks and
// dependencies.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func read(path string) map[string]any {
	text, err := os.ReadFile(path)
	check(err)
	values := map[string]any{}
	check(yaml.Unmarshal(text, &values))
	return values
}

func lay(over, values map[string]any) {
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		below, wasMap := values[key].(map[string]any)
		if isMap && wasMap {
			lay(inner, below)
		} else {
			values[key] = value
		}
	}
}

func functions(all *template.Template) template.FuncMap {
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data any) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value any) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(why string, value any) (any, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", why)
		}
		return value, nil
	}
	return functions
}

func main() {
	folder, namespace := os.Args[1], os.Args[2]
	values, chart := read(filepath.Join(folder, "values.yaml")), read(filepath.Join(folder, "Chart.yaml"))
	for _, path := range os.Args[3:] {
		lay(read(path), values)
	}
	data := map[string]any{
		"Values": values,
		"Chart": map[string]any{"Name": chart["name"], "Version": chart["version"],
			"AppVersion": chart["appVersion"]},
		"Capabilities": map[string]any{"KubeVersion": map[string]any{"Version": "v1.30.0"}},
		"Release": map[string]any{"Name": "memtape", "Namespace": namespace, "Service": "Helm"},
	}
	all := template.New("chart").Option("missingkey=error")
	all.Funcs(functions(all))
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = all.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	objects := []any{}
	for _, path := range paths {
		if !strings.HasSuffix(path, ".yaml") {
			continue
		}
		var out strings.Builder
		check(all.ExecuteTemplate(&out, filepath.Base(path), data))
		documents := yaml.NewDecoder(strings.NewReader(out.String()))
		for {
			var object any
			if documents.Decode(&object) != nil {
				break
			}
			if object != nil {
				objects = append(objects, object)
			}
		}
	}
	text, err := json.MarshalIndent(objects, "", " ")
	check(err)
	fmt.Println(string(text))
}
