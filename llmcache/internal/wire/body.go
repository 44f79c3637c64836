package wire

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"

	"github.com/nexuscore/onceq/internal/canonical"
)

const (
	bodyJSON = "json"
	bodyForm = "multipart"
	bodyRaw  = "raw"
)

// maxParts bounds the parts of a multipart body; a transcription has a dozen.
const maxParts = 1000

// body is a request body in its canonical form.
type body struct {
	kind  string // "" when not read
	media string // of a raw body
	bytes []byte // canonical JSON, or the raw bytes
	parts []part // ordered by name; parts of one name keep their order
}

type part struct {
	name, filename, media string
	data                  []byte
}

// readBody brings the body of r into its canonical form. A JSON document that
// readers may understand differently has none: what we would take for a plain
// request may be a stored one to the server.
func readBody(r Request) (body, Reason) {
	if len(r.Body) > MaxBody {
		return body{}, ReasonTooLarge
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return body{}, ReasonEncoding
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media, params = "", nil
	}
	switch {
	case media == "multipart/form-data":
		parts, ok := readParts(r.Body, params["boundary"])
		if !ok {
			return body{}, ReasonMalformed
		}
		return body{kind: bodyForm, parts: parts}, ""
	case isJSON(media) || media == "" && looksLikeObject(r.Body):
		doc, err := canonical.JSON(nil, r.Body)
		if err != nil {
			return body{}, ReasonMalformed
		}
		return body{kind: bodyJSON, bytes: doc}, ""
	}
	if media != "" {
		media = mime.FormatMediaType(media, params)
	}
	return body{kind: bodyRaw, media: media, bytes: r.Body}, ""
}

func isJSON(media string) bool {
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}

func looksLikeObject(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && b[0] == '{'
}

// readParts reads a whole multipart body. Parts of different names have no order
// between them: SDKs that build a form from a map send them in any.
func readParts(b []byte, boundary string) ([]part, bool) {
	if boundary == "" {
		return nil, false
	}
	var parts []part
	for r := multipart.NewReader(bytes.NewReader(b), boundary); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil || len(parts) == maxParts {
			return nil, false
		}
		data, err := io.ReadAll(p)
		if err != nil {
			return nil, false
		}
		parts = append(parts, part{name: p.FormName(), filename: p.FileName(), media: partMedia(http.Header(p.Header)), data: data})
	}
	if len(parts) == 0 {
		return nil, false
	}
	slices.SortStableFunc(parts, func(a, b part) int { return strings.Compare(a.name, b.name) })
	return parts, true
}

// partMedia joins what says how to read a part's bytes.
func partMedia(h http.Header) string {
	m := h.Get("Content-Type")
	if e := h.Get("Content-Transfer-Encoding"); e != "" {
		m += "; transfer-encoding=" + strings.ToLower(e)
	}
	return m
}

// field returns the value of a form's only part of that name.
func (b body) field(name string) string {
	for _, p := range b.parts {
		if p.name == name && p.filename == "" {
			return string(p.data)
		}
	}
	return ""
}
