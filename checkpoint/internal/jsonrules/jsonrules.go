// Package jsonrules is what encoding/json makes of a Go type.
package jsonrules

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// MarshalsItself reports whether encoding/json leaves t to its own methods.
func MarshalsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Implements(jsonMarshaler) || p.Implements(jsonMarshaler) ||
		t.Implements(textMarshaler) || p.Implements(textMarshaler)
}

// Skipped reports whether encoding/json leaves a struct field out.
func Skipped(f reflect.StructField) bool {
	if f.Tag.Get("json") == "-" {
		return true
	}
	return !f.IsExported() && !(f.Anonymous && deref(f.Type).Kind() == reflect.Struct)
}

// FieldName is how encoding/json calls a field; "" for an embedded struct whose
// fields count as the outer one's.
func FieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name != "" {
		return name
	}
	if t := deref(f.Type); f.Anonymous && t.Kind() == reflect.Struct && !MarshalsItself(t) {
		return ""
	}
	return f.Name
}

func deref(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}
