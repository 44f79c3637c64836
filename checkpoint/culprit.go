package checkpoint

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"unicode/utf8"

	"github.com/nexuscore/onceq/checkpoint/internal/jsonrules"
)

// culprit returns the path of the first value inside v that encoding/json
// refuses, or "": its own errors name the type at best.
func culprit(v any) string {
	w := walker{bad: func(v reflect.Value) bool {
		switch v.Kind() {
		case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
			return true
		case reflect.Float32, reflect.Float64:
			return math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0)
		}
		return false
	}}
	return w.find(v)
}

// notUTF8 returns the path of the first string inside v that is not UTF-8.
func notUTF8(v any) string {
	w := walker{bad: func(v reflect.Value) bool {
		return v.Kind() == reflect.String && !utf8.ValidString(v.String())
	}}
	return w.find(v)
}

// walker looks for a bad value where encoding/json would look.
type walker struct {
	bad  func(reflect.Value) bool
	open map[visit]bool // pointers, maps and slices around the current value
}

type visit struct {
	p uintptr
	n int // slices that share an array differ in length
	t reflect.Type
}

const maxWalkDepth = 1000

func (w *walker) find(v any) string {
	w.open = map[visit]bool{}
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	if !rv.IsValid() {
		return ""
	}
	return w.walk(rv.Type().String(), rv, 0)
}

func (w *walker) walk(path string, v reflect.Value, depth int) string {
	if depth > maxWalkDepth {
		return ""
	}
	if jsonrules.MarshalsItself(v.Type()) {
		if v.Kind() == reflect.Pointer && v.IsNil() || !v.CanInterface() {
			return ""
		}
		if _, err := json.Marshal(v.Interface()); err != nil {
			return path
		}
		return ""
	}
	if w.bad(v) {
		return path
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		if v.IsNil() {
			return ""
		}
		at := visit{v.Pointer(), 0, v.Type()}
		if v.Kind() == reflect.Slice {
			at.n = v.Len()
		}
		if w.open[at] {
			return path + " (a cycle)"
		}
		w.open[at] = true
		defer delete(w.open, at)
	}
	return w.inside(path, v, depth+1)
}

func (w *walker) inside(path string, v reflect.Value, depth int) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return w.walk(path, v.Elem(), depth)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			at := fmt.Sprintf("%s[%.40q]", path, fmt.Sprint(it.Key()))
			if found := w.walk(at, it.Key(), depth); found != "" {
				return found
			}
			if found := w.walk(at, it.Value(), depth); found != "" {
				return found
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if found := w.walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth); found != "" {
				return found
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if jsonrules.Skipped(f) {
				continue
			}
			if found := w.walk(path+"."+f.Name, v.Field(i), depth); found != "" {
				return found
			}
		}
	}
	return ""
}
